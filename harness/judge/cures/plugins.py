"""Cures of users: the `@cure` decorator and the files that use it.

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

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from harness.core.errors import InputError
from harness.core.files import execute_file, load_once
from harness.core.ops import OPS

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
