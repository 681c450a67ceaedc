"""People's own cures: the `@cure` decorator and the files that use it.

A cure wraps a function of the engine that is marked with `@seam`, or the kernels of an op, and is given what it wraps:

    from harness import cure

    @cure(replaces="harness.engine.experts:hand_over_ids")
    def int32_ids(wrapped, ids, poison):
        return ids

    @cure(op="mla_decode")
    def zero_empty_rows(wrapped, *args, **kwargs):
        out, lse = wrapped(*args, **kwargs)
        out[args[3] == 0] = 0
        return out, lse

A file is code of a stranger: it is executed in a worker process only.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from harness.core.errors import InputError
from harness.core.loaded_files import line_in, load_once
from harness.core.ops import OPS

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

_declared: list[CureSpec] = []
_loaded: dict[Path, tuple[CureSpec, ...] | InputError] = {}


@dataclass(frozen=True, slots=True)
class CureSpec:
    """One cure of a file: what it wraps (the "module:function" of a seam, or an op), and the function."""

    name: str
    function: Callable[..., Any]
    replaces: str = ""
    op: str = ""


def cure(*, replaces: str = "", op: str = "") -> Callable[[FunctionT], FunctionT]:
    """Declare the decorated function as a proposed cure; it is called as `function(wrapped, *args, **kwargs)`.

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
    """Execute a file once in this process; returns the cures it declares. Raises InputError with file and line."""
    return load_once(path, _loaded, _execute)


def _execute(file: Path) -> tuple[CureSpec, ...]:
    name = f"mla_harness_cure_{file.stem}_{len(_loaded)}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise InputError(f"cure {file}: not a Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    before = len(_declared)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        sentence = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        raise InputError(f"cure {file}:{line_in(file, error)}: {' '.join(sentence.split())}") from error
    declared = tuple(_declared[before:])
    if not declared:
        raise InputError(
            f"cure {file}: declares no cure; decorate a function with @cure(replaces=...) or @cure(op=...)"
        )
    for item in declared:
        if not inspect.signature(item.function).parameters:
            raise InputError(f"cure {file}: {item.name}() takes nothing; its first argument is what it wraps")
    return declared
