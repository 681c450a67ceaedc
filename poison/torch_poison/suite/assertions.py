"""Watch the comparisons of a test: torch's and numpy's comparing functions report the values that
they compare.

Calls of torch are watched by a mode, which replaces no function: a program may key tables by
torch's functions. The comparisons behind `torch.testing.assert_close` and `numpy.testing.assert_*`
are wrapped while a test runs, as they are no functions that a program can override.

An operator counts in files of tests: `assert not (out[:4] > limit).any()` passes on NaN, for which
every comparison is False. What a comparison found in its operands counts when its result is read as
a whole (`bool`, `any`, `sum`, …). It does not count when a part of the result is read, or the
result combined with a mask: so tests leave padding out.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any
from unittest import mock

import torch
from numpy.testing._private import utils as numpy_testing
from torch import overrides
from torch.overrides import TorchFunctionMode
from torch.testing._comparison import TensorLikePair
from torch.utils._device import DeviceContext

from torch_poison.suite.observation import Observation, PoisonFound

_STACK: Any = overrides
"""The functions of the stack of modes are not typed."""
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
READINGS = (
    "all",
    "any",
    "count_nonzero",
    "item",
    "max",
    "mean",
    "min",
    "sum",
    "__bool__",
    "__float__",
    "__int__",
)
UNCHANGED = ("bool", "cpu", "float", "int", "logical_not", "long", "__invert__")
"""Methods with a result that is read as its tensor is."""


def _watched() -> dict[Any, tuple[str, str]]:
    """The watched functions of torch: the kind and the name of each."""
    tensor = torch.Tensor
    kinds: dict[Any, tuple[str, str]] = {}
    for owner, prefix in ((torch, "torch"), (tensor, "Tensor")):
        kinds |= {
            getattr(owner, name): ("assertion", f"{prefix}.{name}")
            for name in ("equal", "allclose")
        }
        kinds |= {
            getattr(owner, name): ("operator", f"operator {name}")
            for name in (*COMPARISONS, "isclose")
        }
    kinds |= {
        getattr(tensor, f"__{name}__"): ("operator", f"operator {name}") for name in COMPARISONS
    }
    kinds |= dict.fromkeys(
        (torch.all, torch.any, *(getattr(tensor, name) for name in READINGS)), ("reading", "")
    )
    return kinds | dict.fromkeys((getattr(tensor, name) for name in UNCHANGED), ("unchanged", ""))


WATCHED = _watched()


class WatchComparisons(TorchFunctionMode):
    """Within its block, `observation` gets the values of each comparison. Results do not change."""

    def __init__(self, observation: Observation) -> None:
        super().__init__()
        self._observation = observation
        self._results: dict[int, tuple[weakref.ref[torch.Tensor], list[PoisonFound]]] = {}
        self._wraps = contextlib.ExitStack()

    def __enter__(self) -> WatchComparisons:
        # The lowest place above a default device: a fixture may enter a mode here and leave it in a
        # later test.
        _rearrange(
            lambda modes: sorted(
                [self, *modes], key=lambda mode: not isinstance(mode, DeviceContext)
            )
        )
        self._wrap(
            TensorLikePair, "compare", "the comparison", lambda pair: (pair.actual, pair.expected)
        )
        self._wrap(
            numpy_testing, "assert_array_compare", "numpy.testing", lambda comparison, x, y: (x, y)
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._wraps.close()
        _rearrange(lambda modes: [mode for mode in modes if mode is not self])

    def _wrap(
        self, owner: Any, attribute: str, name: str, sides: Callable[..., tuple[Any, ...]]
    ) -> None:
        function = getattr(owner, attribute, None)
        if function is None:
            return

        @functools.wraps(function)
        def compare(*values: Any, **named: Any) -> Any:
            self._observation.compared(name, sys._getframe(1), sides(*values[:3]))
            return function(*values, **named)

        self._wraps.enter_context(mock.patch.object(owner, attribute, compare))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if torch.compiler.is_compiling() or func not in WATCHED:
            return func(*args, **named)
        kind, name = WATCHED[func]
        known: list[PoisonFound] | None = self._found_in(args)
        if kind == "assertion":
            self._observation.compared(name, _caller(), (args[0], named.get("other", args[-1])))
        elif kind == "operator":
            found = self._observation.operands(name, _caller(), args[:2])
            known = [*found, *known] if found is not None and known is not None else None
        # With a dimension or a mask as argument the test reads a part, which may leave padding out.
        elif kind == "reading" and known and len(args) == 1 and not named:
            self._observation.found += known
        out = func(*args, **named)
        if kind in ("operator", "unchanged") and known and isinstance(out, torch.Tensor):
            key = id(out)
            results = self._results
            # An id is reused when its tensor dies, so the entry must go with it.
            results[key] = weakref.ref(out, lambda _: results.pop(key, None)), known
        return out

    def _found_in(self, values: tuple[Any, ...]) -> list[PoisonFound]:
        if not self._results:
            return []
        return [
            one
            for value in values
            if id(value) in self._results
            for one in self._results[id(value)][1]
        ]


def _rearrange(order: Callable[[list[Any]], list[Any]]) -> None:
    """Replace the modes of this thread, lowest first, by what `order` makes of them."""
    modes = [_STACK._pop_mode() for _ in range(_STACK._len_torch_function_stack())][::-1]
    for mode in order(modes):
        _STACK._push_mode(mode)


def _caller() -> FrameType:
    """The frame that called torch. Other modes, which pass calls on, are passed over."""
    frame = sys._getframe(2)
    while frame.f_code.co_name == "__torch_function__" and frame.f_back is not None:
        frame = frame.f_back
    return frame
