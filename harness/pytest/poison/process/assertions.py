"""The assertions that can be seen: torch's and numpy's comparing functions tell an observer what they compare.

Nothing is compared here, and no result changes. Seen, however they were imported: `torch.testing.assert_close`,
`assertEqual` of torch's own test cases, and `numpy.testing.assert_*` of arrays (all end in one method or function each
that is looked up when they run); `torch.equal`, `torch.allclose` and the methods of those names, unless bound before
the plug-in started. Not seen: operators, such as `assert (a == b).all()`, which see only their own result.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

Tell = Callable[[str, FrameType, tuple[Any, ...]], None]


class Interception:
    """Wraps the comparing functions; `remove` puts them back."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Wrap what this version of torch and numpy has."""
        self._wrap_pairs()
        self._wrap_arrays()
        for name in ("equal", "allclose"):
            wrapped = self._wrapped(getattr(torch, name), f"torch.{name}")
            with contextlib.suppress(AttributeError):
                # TorchScript knows its functions by identity.
                torch.jit._builtins._register_builtin(wrapped, f"aten::{name}")
            self._set(torch, name, wrapped)
            self._set(torch.Tensor, name, self._wrapped(getattr(torch.Tensor, name), f"Tensor.{name}"))

    def remove(self) -> None:
        """Put everything back."""
        while self._undo:
            self._undo.pop()()

    def _set(self, owner: Any, name: str, value: Any) -> None:
        if name in vars(owner):
            before = vars(owner)[name]
            self._undo.append(lambda: setattr(owner, name, before))
        else:
            self._undo.append(lambda: delattr(owner, name))
        setattr(owner, name, value)

    def _wrapped(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        tell = self._tell

        @functools.wraps(function)
        def compare(left: Any, *rest: Any, **named: Any) -> Any:
            if not torch.compiler.is_compiling():
                right = rest[0] if rest else named.get("other")
                tell(name, sys._getframe(1), (left, right))
            return function(left, *rest, **named)

        return compare

    def _wrap_pairs(self) -> None:
        comparison = importlib.import_module("torch.testing._comparison")
        pair = getattr(comparison, "TensorLikePair", None)
        if pair is None:
            return
        original, tell = pair.compare, self._tell

        @functools.wraps(original)
        def compare(self: Any) -> Any:
            tell("the comparison", sys._getframe(1), (self.actual, self.expected))
            return original(self)

        self._set(pair, "compare", compare)

    def _wrap_arrays(self) -> None:
        try:
            module = importlib.import_module("numpy.testing._private.utils")
        except ImportError:
            return
        original = getattr(module, "assert_array_compare", None)
        if original is None:
            return
        tell = self._tell

        @functools.wraps(original)
        def compare(comparison: Any, x: Any, y: Any, *rest: Any, **named: Any) -> Any:
            tell("numpy.testing", sys._getframe(1), (x, y))
            return original(comparison, x, y, *rest, **named)

        self._set(module, "assert_array_compare", compare)
