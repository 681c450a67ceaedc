"""Watch assertions: torch's and numpy's comparing functions report the values they compare to an observer.

Results do not change. Seen, however imported: `torch.testing.assert_close`, `assertEqual` of torch's own test cases,
and `numpy.testing.assert_*` of arrays. Each ends in one method or function that is looked up when it runs. Also seen,
unless bound before the plug-in started: `torch.equal`, `torch.allclose` and the methods of these names.

Operators are seen in files of tests: `assert not (out[:4] > limit).any()` passes on NaN, for which every comparison is
False. What a comparison found in its operands counts when its result is read as a whole (`bool`, `any`, `sum`, …). It
does not count when a part of the result is read, or the result combined with a mask: so tests leave padding out.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any, Generic, TypeVar
from unittest import mock

import torch

COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
READINGS = ("all", "any", "count_nonzero", "item", "max", "mean", "min", "sum")
UNCHANGED = ("bool", "cpu", "float", "int", "logical_not", "long")
"""Methods with a result that is read as its tensor is."""

Observer = Callable[[str, FrameType, tuple[Any, ...]], None]
"""Called with the name of the comparison, the frame that made it, and the compared values."""


FoundT = TypeVar("FoundT")
Operands = Callable[[str, FrameType, tuple[Any, ...]], list[FoundT] | None]
"""As an observer, for an operator: returns what it found in the operands, or None if the frame is no test's."""


class Interception(Generic[FoundT]):
    """Wraps the comparing functions from `install` to `remove`. `report` gets what a test has read from an operator."""

    def __init__(self, observer: Observer, operands: Operands[FoundT], report: Callable[[list[FoundT]], None]) -> None:
        self._observer, self._operands, self._report = observer, operands, report
        self._patches = contextlib.ExitStack()
        self._results: dict[int, tuple[weakref.ref[torch.Tensor], list[FoundT]]] = {}

    def install(self) -> None:
        """Wrap the functions that these versions of torch and numpy have."""
        self._wrap("torch.testing._comparison:TensorLikePair.compare", "the comparison", _sides_of_pair)
        self._wrap("numpy.testing._private.utils:assert_array_compare", "numpy.testing", _sides_of_arrays)
        for name in ("equal", "allclose"):
            wrapped = self._wrap(f"torch:{name}", f"torch.{name}", _sides_of_call)
            self._keep_for_torchscript(wrapped, name)
            self._wrap(f"torch:Tensor.{name}", f"Tensor.{name}", _sides_of_call)
        for owner in (torch, torch.Tensor):
            for name in (*COMPARISONS, "isclose"):
                self._patch(owner, name, functools.partial(self._compare, name))
        for name in COMPARISONS:
            self._patch(torch.Tensor, f"__{name}__", functools.partial(self._compare, name))
        # Programs override torch's other functions by identity.
        for owner, names in ((torch, ("all", "any")), (torch.Tensor, READINGS)):
            for name in names:
                self._patch(owner, name, self._read)
        for name in ("__bool__", "__float__", "__int__"):
            self._patch(torch.Tensor, name, self._read)
        for name in (*UNCHANGED, "__invert__"):
            self._patch(torch.Tensor, name, self._pass_on)

    def remove(self) -> None:
        self._patches.close()

    def _wrap(self, place: str, name: str, sides: Callable[..., tuple[Any, ...]]) -> Callable[..., Any] | None:
        """Wrap the function at MODULE:ATTRIBUTE, if there is one. Returns the wrapper."""
        module, _, path = place.partition(":")
        *owners, attribute = path.split(".")
        try:
            owner = functools.reduce(getattr, owners, importlib.import_module(module))
            function: Callable[..., Any] = getattr(owner, attribute)
        except (ImportError, AttributeError):
            return None
        observer = self._observer

        @functools.wraps(function)
        def compare(*values: Any, **named: Any) -> Any:
            if not torch.compiler.is_compiling():
                observer(name, sys._getframe(1), sides(*values, **named))
            return function(*values, **named)

        self._patches.enter_context(mock.patch.object(owner, attribute, compare))
        return compare

    def _patch(self, owner: Any, name: str, wrap: Callable[..., Any]) -> None:
        """Call `wrap` instead of a function, with the function, the frame of its caller, and its arguments."""
        function = getattr(owner, name, None)
        if function is None:
            return

        @functools.wraps(function)
        def call(*values: Any, **named: Any) -> Any:
            if torch.compiler.is_compiling():
                return function(*values, **named)
            return wrap(function, sys._getframe(1), values, named)

        if owner is torch:
            self._keep_for_torchscript(call, name)
        self._patches.enter_context(mock.patch.object(owner, name, call))

    @staticmethod
    def _keep_for_torchscript(wrapped: Any, name: str) -> None:
        """TorchScript knows its functions by identity."""
        with contextlib.suppress(AttributeError):
            torch.jit._builtins._register_builtin(wrapped, f"aten::{name}")

    def _compare(self, name: str, function: Any, frame: FrameType, values: tuple[Any, ...], named: Any) -> Any:
        found = self._operands(f"operator {name}", frame, values[:2])
        out = function(*values, **named)
        return out if found is None else self._remember(out, [*found, *self._found_in(values)])

    def _pass_on(self, function: Any, frame: FrameType, values: tuple[Any, ...], named: Any) -> Any:
        return self._remember(function(*values, **named), self._found_in(values))

    def _read(self, function: Any, frame: FrameType, values: tuple[Any, ...], named: Any) -> Any:
        if len(values) == 1 and not named and (found := self._found_in(values)):
            self._report(found)
        return function(*values, **named)

    def _remember(self, out: Any, found: list[FoundT]) -> Any:
        if found and isinstance(out, torch.Tensor):
            key, results = id(out), self._results
            self._results[key] = weakref.ref(out, lambda _: results.pop(key, None)), found
        return out

    def _found_in(self, values: tuple[Any, ...]) -> list[FoundT]:
        if not self._results:
            return []
        known = [self._results[id(value)] for value in values if id(value) in self._results]
        return [one for _, found in known for one in found]


def _sides_of_pair(pair: Any) -> tuple[Any, ...]:
    return pair.actual, pair.expected


def _sides_of_arrays(comparison: Any, x: Any, y: Any, *_: Any, **__: Any) -> tuple[Any, ...]:
    return x, y


def _sides_of_call(left: Any, right: Any = None, *_: Any, **named: Any) -> tuple[Any, ...]:
    return left, named.get("other", right)
