"""Putting a cure in place, for the length of a block; a fill is no patch, but poison that is left out."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from harness.core.catalog import FAULTS
from harness.core.cure_names import LOGITS, CureName, parse
from harness.core.errors import InputError
from harness.core.kernel_spec import KernelSpec
from harness.core.ops import OPS
from harness.engine.model.transformer import CausalLM
from harness.judge.cures.plugins import load_cures

Kernel = Callable[..., Any]


@contextlib.contextmanager
def applied(cures: tuple[str, ...]) -> Iterator[None]:
    """Apply the cures, the first innermost. `fix` and `zero` change what is put back and filled, and nothing here."""
    with contextlib.ExitStack() as stack:
        for name in map(parse, cures):
            for context in _contexts(name):
                stack.enter_context(context)
        yield


def _contexts(name: CureName) -> Iterator[contextlib.AbstractContextManager[None]]:
    if name.kind == "file":
        for spec in load_cures(name.what):
            if spec.op:
                yield _around_op(spec.op, spec.function)
            else:
                yield _around_function(spec.replaces, spec.function)
    elif name.kind == "nan_to_num":
        op, _, output = name.what.partition(".")
        if name.what == LOGITS:
            yield _around_function("harness.engine.model.transformer:CausalLM.compute_logits", _scrub_logits)
        else:
            yield _around_op(op, functools.partial(_scrub, [item.name for item in OPS.get(op).outputs].index(output)))


@contextlib.contextmanager
def _around_op(op: str, function: Callable[..., Any]) -> Iterator[None]:
    """Let `function` stand around every kernel of `op` that is loaded within the block."""
    load = KernelSpec.load

    def wrapping(spec: KernelSpec) -> Kernel:
        kernel = load(spec)
        return functools.wraps(kernel)(functools.partial(function, kernel)) if spec.op == op else kernel

    with _replaced(KernelSpec, "load", wrapping):
        yield


@contextlib.contextmanager
def _around_function(target: str, function: Callable[..., Any]) -> Iterator[None]:
    """Let `function` stand around "module:attribute", whatever a fault has put there."""
    module, _, path = target.partition(":")
    *owners, attribute = path.split(".")
    try:
        owner: Any = importlib.import_module(module)
        for part in owners:
            owner = getattr(owner, part)
        original = getattr(owner, attribute)
    except (ImportError, AttributeError) as error:
        raise InputError(f"@cure(replaces={target!r}): {error}; name a function of the harness") from error

    @functools.wraps(original)
    def around(*args: Any, **kwargs: Any) -> Any:
        return function(original, *args, **kwargs)

    with _replaced(owner, attribute, around):
        yield


@contextlib.contextmanager
def _replaced(owner: Any, attribute: str, value: Any) -> Iterator[None]:
    before = owner.__dict__[attribute]
    setattr(owner, attribute, value)
    try:
        yield
    finally:
        setattr(owner, attribute, before)


def _scrub(place: int, wrapped: Kernel, *args: Any, **kwargs: Any) -> Any:
    """Call a kernel and replace what is not finite in one of its outputs, in place."""
    result = wrapped(*args, **kwargs)
    output: torch.Tensor = result[place] if isinstance(result, tuple) else result
    if output.dtype.is_floating_point:
        output.copy_(torch.nan_to_num(output.float()))
    return result


def _scrub_logits(wrapped: Callable[..., torch.Tensor], model: CausalLM, hidden: torch.Tensor) -> torch.Tensor:
    return torch.nan_to_num(wrapped(model, hidden))


def faults_left(faults: tuple[str, ...], cures: tuple[str, ...]) -> tuple[str, ...]:
    """The bugs that are still put back once those that a cure fixes are taken out. Raises UnknownNameError."""
    fixed = {name.what for name in map(parse, cures) if name.kind == "fix"}
    return tuple(name for name in faults if FAULTS.get(name).name not in fixed)
