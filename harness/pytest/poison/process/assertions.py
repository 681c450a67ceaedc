"""Watch assertions: torch's and numpy's comparing functions report the values they compare to an observer.

Results do not change. Seen, however imported: `torch.testing.assert_close`, `assertEqual` of torch's own test cases,
and `numpy.testing.assert_*` of arrays. Each ends in one method or function that is looked up when it runs. Also seen,
unless bound before the plug-in started: `torch.equal`, `torch.allclose` and the methods of these names. Not seen:
operators, such as `assert (a == b).all()`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any
from unittest import mock

import torch

Observer = Callable[[str, FrameType, tuple[Any, ...]], None]
"""Called with the name of the comparison, the frame that made it, and the compared values."""


class Interception:
    """Wraps the comparing functions from `install` to `remove`."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._patches = contextlib.ExitStack()

    def install(self) -> None:
        """Wrap the functions that these versions of torch and numpy have."""
        self._wrap("torch.testing._comparison:TensorLikePair.compare", "the comparison", _sides_of_pair)
        self._wrap("numpy.testing._private.utils:assert_array_compare", "numpy.testing", _sides_of_arrays)
        for name in ("equal", "allclose"):
            wrapped = self._wrap(f"torch:{name}", f"torch.{name}", _sides_of_call)
            with contextlib.suppress(AttributeError):
                # TorchScript knows its functions by identity.
                torch.jit._builtins._register_builtin(wrapped, f"aten::{name}")
            self._wrap(f"torch:Tensor.{name}", f"Tensor.{name}", _sides_of_call)

    def remove(self) -> None:
        """Restore all functions."""
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


def _sides_of_pair(pair: Any) -> tuple[Any, ...]:
    return pair.actual, pair.expected


def _sides_of_arrays(comparison: Any, x: Any, y: Any, *_: Any, **__: Any) -> tuple[Any, ...]:
    return x, y


def _sides_of_call(left: Any, right: Any = None, *_: Any, **named: Any) -> tuple[Any, ...]:
    return left, named.get("other", right)
