"""Cures of users: the `@cure` decorator, the files that use it, and their application for the length of a block.

A cure wraps a function of the engine that is marked with `@seam`, or the kernels of an op. Its first argument is the
wrapped function:

    from harness import cure

    @cure(replaces="harness.engine.experts:hand_over_ids")
    def int32_ids(wrapped, ids, poison):
        return ids

    @cure(op="mla_decode")
    def zero_empty_rows(wrapped, *args, **kwargs):
        out, lse = wrapped(*args, **kwargs)
        out[args[3] == 0] = 0
        return out, lse

A file is foreign code, so only a worker process executes it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from harness.core.catalog import FAULTS
from harness.core.cure_names import LOGITS, CureName, parse
from harness.core.errors import InputError
from harness.core.files import execute_file, load_once
from harness.core.ops import OPS
from harness.core.seams import find_seam
from harness.engine.model.transformer import CausalLM
from harness.kernels.call import Wrapper, wrapped_kernels

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

_declared: list[CureSpec] = []
_loaded: dict[Path, tuple[CureSpec, ...] | InputError] = {}


@dataclass(frozen=True, slots=True)
class CureSpec:
    """One cure of a file: its function, and the wrapped seam ("module:function") or op."""

    name: str
    function: Callable[..., Any]
    replaces: str = ""
    op: str = ""


def cure(*, replaces: str = "", op: str = "") -> Callable[[FunctionT], FunctionT]:
    """Declare the decorated function as a proposed cure. It is called as `function(wrapped, *args, **kwargs)`.

    Give either `replaces`, the "module:function" or "module:Class.method" of a seam, or `op`, to wrap every kernel of
    that op. Raises InputError for neither, both, or an unknown op.
    """
    if bool(replaces) == bool(op):
        raise InputError("@cure: give either replaces='module:function' or op='mla_decode'")
    if replaces and not (replaces.startswith("harness.") and replaces.count(":") == 1):
        raise InputError(f"@cure(replaces={replaces!r}): write 'harness.module:function'")
    if op:
        OPS.get(op)

    def declare(function: FunctionT) -> FunctionT:
        _declared.append(CureSpec(function.__name__, function, replaces, op))
        return function

    return declare


def load_cures(path: str) -> tuple[CureSpec, ...]:
    """Execute a file once in this process. Returns the cures it declares. Raises InputError with file and line."""
    return load_once(path, _loaded, _execute)


def _execute(file: Path) -> tuple[CureSpec, ...]:
    before = len(_declared)
    execute_file(file, "cure", f"mla_harness_cure_{file.stem}_{len(_loaded)}")
    declared = tuple(_declared[before:])
    if not declared:
        raise InputError(
            f"cure {file}: declares no cure; decorate a function with @cure(replaces=...) or @cure(op=...)"
        )
    for item in declared:
        if not inspect.signature(item.function).parameters:
            raise InputError(f"cure {file}: {item.name}() has no argument; its first argument is the wrapped function")
    return declared


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
