"""Applies cures for the length of a block: around seams of the engine and around kernels of an op."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from harness.core.catalog import FAULTS
from harness.core.cure_names import LOGITS, CureName, parse
from harness.core.errors import InputError
from harness.core.ops import OPS
from harness.core.seams import find_seam
from harness.engine.model.transformer import CausalLM
from harness.judge.cures.plugins import load_cures
from harness.kernels.call import Wrapper, wrapped_kernels


@contextlib.contextmanager
def applied(cures: tuple[str, ...]) -> Iterator[None]:
    """Apply the cures, the first innermost. `fix` and `zero` do nothing here: the caller omits a fault or a site."""
    with contextlib.ExitStack() as stack:
        for name in map(parse, cures):
            for context in _contexts(name):
                stack.enter_context(context)
        yield


def _contexts(name: CureName) -> Iterator[contextlib.AbstractContextManager[None]]:
    if name.kind == "file":
        for spec in load_cures(name.what):
            if spec.op:
                yield wrapped_kernels(spec.op, spec.function)
            else:
                yield _around_function(spec.replaces, spec.function)
    elif name.kind == "nan_to_num":
        op, _, output = name.what.partition(".")
        if name.what == LOGITS:
            yield _around_function("harness.engine.model.transformer:CausalLM.compute_logits", _scrub_logits)
        else:
            index = [item.name for item in OPS.get(op).outputs].index(output)
            yield wrapped_kernels(op, functools.partial(_scrub, index))


def _around_function(place: str, function: Wrapper) -> contextlib.AbstractContextManager[None]:
    """Call `function` around the current code of a seam, which may be a fault."""
    try:
        seam = find_seam(place)
    except InputError as error:
        raise InputError(f"@cure(replaces={place!r}): {error}; name a function of the harness so marked") from error
    return seam.replaced(functools.partial(function, seam.current))


def _scrub(index: int, wrapped: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a kernel and replace the non-finite values of one output in place."""
    result = wrapped(*args, **kwargs)
    output: torch.Tensor = result[index] if isinstance(result, tuple) else result
    if output.dtype.is_floating_point:
        output.copy_(torch.nan_to_num(output.float()))
    return result


def _scrub_logits(wrapped: Callable[..., torch.Tensor], model: CausalLM, hidden: torch.Tensor) -> torch.Tensor:
    return torch.nan_to_num(wrapped(model, hidden))


def faults_left(faults: tuple[str, ...], cures: tuple[str, ...]) -> tuple[str, ...]:
    """The faults that no cure fixes. Raises UnknownNameError."""
    fixed = {name.what for name in map(parse, cures) if name.kind == "fix"}
    return tuple(name for name in faults if FAULTS.get(name).name not in fixed)
