"""Seams: the marked functions of the engine and its kernels that a fault may replace.

A function is marked where it is defined, with the names of the faults that replace it:

    @seam("decode.zero-length-row-nan")
    def divide_by_sum(accumulated, total): ...

Its module cannot be imported while the mark and the table of faults differ. `git grep '@seam('`
lists all seams.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from harness.core.catalog import FAULTS
from harness.core.errors import InputError
from harness.core.faults import FaultSpec
from harness.core.registry import attribute_at, nearest

Function = Callable[..., Any]
FunctionT = TypeVar("FunctionT", bound=Function)

_seams: dict[str, Seam] = {}
_injected: set[str] = set()


@dataclass(slots=True)
class Seam:
    """One marked function. A call runs `current`: the function itself, or its replacement."""

    current: Function

    @contextlib.contextmanager
    def replaced(self, replacement: Function) -> Iterator[None]:
        """Run `replacement` instead, for the length of the block."""
        # Kept, so that replacements nest: a fault may be injected while a probe watches the same
        # seam.
        before = self.current
        self.current = replacement
        try:
            yield
        finally:
            self.current = before


def seam(*faults: str) -> Callable[[FunctionT], FunctionT]:
    """Mark the decorated function as the place of `faults`.

    Raises UnknownNameError for a fault that is not in the table, and ValueError for one with
    another target.
    """

    def mark(function: FunctionT) -> FunctionT:
        place = f"{function.__module__}:{function.__qualname__}"
        for fault in faults:
            target = FAULTS.get(fault).target
            # Checked at import, so that a table that names an old place cannot pass for a fault
            # that nothing sees.
            if target != place:
                raise ValueError(
                    f"@seam({fault!r}) marks {place}, but the table of faults says {target}"
                )
        marked = _seams[place] = Seam(function)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return marked.current(*args, **kwargs)

        return cast(FunctionT, call)

    return mark


def find_seam(place: str) -> Seam:
    """The seam at "module:function".

    Imports the module. Raises InputError if no such function is marked.
    """
    module = place.partition(":")[0]
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise InputError(f"{place}: {error}") from error
    if place not in _seams:
        raise InputError(
            f"{place} is not marked with @seam; {nearest(place, list(_seams), see='')}"
        )
    return _seams[place]


@dataclass(slots=True)
class Injection:
    """A fault while it is injected. If no run reached it, the run proves nothing."""

    was_reached: bool = False


def _giving(what: Any, function: Function) -> Function:
    """A function with the arguments of `function` that returns the one called `what`, or any other
    value as it is.
    """
    signature = inspect.signature(function)
    return lambda *args, **kwargs: (
        signature.bind(*args, **kwargs).arguments[what] if isinstance(what, str) else what
    )


@contextlib.contextmanager
def inject(fault: FaultSpec) -> Iterator[Injection]:
    """Run the fault's replacement at its seam, for the length of the block.

    Raises RuntimeError if it runs already.

    A fault of a real engine has no code in this process, so nothing is replaced and it is never
    reached.
    """
    injection = Injection()
    if not fault.target:
        yield injection
        return
    if fault.name in _injected:
        raise RuntimeError(f"fault {fault.name} is injected already")
    target = find_seam(fault.target)
    replacement = (
        attribute_at(fault.replacement)
        if fault.replacement
        else _giving(fault.gives, target.current)
    )

    @functools.wraps(target.current)
    def run(*args: Any, **kwargs: Any) -> Any:
        # Noted by the call, not by the import: a seam that no run reaches proves nothing.
        injection.was_reached = True
        return replacement(*args, **kwargs)

    _injected.add(fault.name)
    try:
        with target.replaced(run):
            yield injection
    finally:
        _injected.discard(fault.name)
