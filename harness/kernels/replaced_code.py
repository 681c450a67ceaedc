"""Functions of torch and of the harness that foreign code replaced: found by identity, and
restored.
"""

from __future__ import annotations

import functools
import operator
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.library

from harness.core.finding_words import few

FunctionsOfTorch = tuple[tuple[Any, ...], dict[str, Any]]
"""The functions of `torch` in the order of `_NAMES`, and the content of `torch.Tensor`."""

_NAMES = tuple(
    name
    for name, value in vars(torch).items()
    if isinstance(value, types.BuiltinFunctionType) and hasattr(torch._C._VariableFunctions, name)
) + tuple(torch.functional.__all__)
"""The functions of `torch` that make tensors or compute with them.

Others, such as `torch.load`, are not watched.
"""
_in_order = operator.itemgetter(*_NAMES)


def functions_of_torch() -> FunctionsOfTorch:
    try:
        return _in_order(vars(torch)), dict(vars(torch.Tensor))
    except KeyError:
        # One was deleted.
        return tuple(vars(torch).get(name) for name in _NAMES), dict(vars(torch.Tensor))


def other_functions_of_torch(before: FunctionsOfTorch, after: FunctionsOfTorch) -> bool:
    # By identity: what replaced a function may claim to be equal to it.
    if any(map(operator.is_not, before[0], after[0])):
        return True
    return len(before[1]) != len(after[1]) or any(
        map(operator.is_not, before[1].values(), after[1].values())
    )


def says_functions_of_torch(before: FunctionsOfTorch, after: FunctionsOfTorch) -> str:
    names = [
        f"torch.{name}"
        for name, old, new in zip(_NAMES, before[0], after[0], strict=True)
        if old is not new
    ]
    names += [f"torch.Tensor.{name}" for name in _of_tensor(before[1], after[1])]
    return f"replaced {few(names)}" if names else ""


def set_functions_of_torch(wanted: FunctionsOfTorch) -> None:
    for name, function in zip(_NAMES, wanted[0], strict=True):
        if vars(torch).get(name) is not function:
            setattr(torch, name, function)
    for name in _of_tensor(wanted[1], dict(vars(torch.Tensor))):
        if name in wanted[1]:
            setattr(torch.Tensor, name, wanted[1][name])
        else:
            delattr(torch.Tensor, name)


def _of_tensor(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The methods that differ. A method that no tensor had before replaces none."""
    names = [
        *before,
        *(name for name in after if name not in before and hasattr(torch._C.TensorBase, name)),
    ]
    return [name for name in names if before.get(name) is not after.get(name)]


_known_kernels: set[str] = set()
"""The kernels that Python code registered for ops of torch, as `aten/eq.Tensor/CPU`, when last
looked at.
"""


def num_kernels_of_aten() -> int:
    """How many kernels Python code registered for ops: a number is read at once, and they are only
    ever added.
    """
    registered = torch.library._impls
    if not _known_kernels:
        _known_kernels.update(registered)
    return len(registered)


def says_kernels_of_aten(before: int, after: int) -> str:
    new = sorted(torch.library._impls - _known_kernels)
    _known_kernels.update(new)
    names = [
        name.split("/")[1] for name in new if name.startswith("aten/") and name.endswith("/CPU")
    ]
    return f"replaced torch's kernels for the CPU of {few(names)}" if names else ""


_JUDGES = (
    "harness.judge.",
    "harness.evidence.",
    "harness.kernels.call",
    "harness.ops.",
    "torch_poison.",
)
"""How the names of modules begin that poison, run and judge.

A fault replaces functions of others, on purpose.
"""
_CODE = (types.FunctionType, type, functools._lru_cache_wrapper)
_MEMBERS = (types.FunctionType, staticmethod, classmethod, property)


@dataclass(frozen=True, slots=True)
class _Place:
    """A module or a class of the harness, and the names of its functions and classes."""

    owner: Any
    name: str
    keys: tuple[str, ...]

    def read(self) -> tuple[Any, ...]:
        """What each of `keys` is now; None for one that is gone."""
        now = vars(self.owner)
        return tuple(map(now.get, self.keys))


_places: list[_Place] = []
_seen: set[str] = set()
"""The modules that were looked at for `_places`."""


def code_of_harness() -> list[tuple[Any, ...]]:
    """The functions and classes of the harness's modules that judge, for each of `_places`, which
    may grow.
    """
    for name in [name for name in sys.modules if name not in _seen]:
        _seen.add(name)
        # Kernels are under judgement themselves, and faults replace their functions on purpose.
        if name.startswith(_JUDGES) and ".kernels." not in name:
            _places.extend(_places_of(name, sys.modules[name]))
    return [place.read() for place in _places]


def _places_of(name: str, module: Any) -> Iterator[_Place]:
    content = dict(vars(module))
    yield _Place(
        module, name, tuple(key for key, value in content.items() if isinstance(value, _CODE))
    )
    for kind in content.values():
        if isinstance(kind, type) and kind.__module__ == name:
            keys = tuple(key for key, value in vars(kind).items() if isinstance(value, _MEMBERS))
            yield _Place(kind, f"{name}.{kind.__name__}", keys)


def other_code_of_harness(before: list[tuple[Any, ...]], after: list[tuple[Any, ...]]) -> bool:
    return any(any(map(operator.is_not, old, new)) for old, new in zip(before, after, strict=False))


def says_code_of_harness(before: list[tuple[Any, ...]], after: list[tuple[Any, ...]]) -> str:
    names = [
        f"{place.name}.{key}"
        for place, was, now in zip(_places, before, after, strict=False)
        for key, old, new in zip(place.keys, was, now, strict=True)
        if old is not new
    ]
    return f"replaced {few(names)}"


def set_code_of_harness(wanted: list[tuple[Any, ...]]) -> None:
    for place, values in zip(_places, wanted, strict=False):
        for key, value in zip(place.keys, values, strict=True):
            if vars(place.owner).get(key) is not value:
                setattr(place.owner, key, value)
