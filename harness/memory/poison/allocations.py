"""Poison for a kernel's allocations: a dispatch mode that fills every new uninitialized tensor.

It sees `torch.empty`, `empty_like`, `empty_strided`, `new_empty` and `resize_`, also within composite ops. Memory that
ATen allocates inside an op (the result of a matmul) is written by that op and needs no poison.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from harness.memory.graph.storage import storage_address, whole_storage
from harness.memory.poison.patterns import Poison

_aten = torch.ops.aten
ALLOCATIONS = frozenset(
    {
        _aten.empty.memory_format,
        _aten.empty_like.default,
        _aten.empty_strided.default,
        _aten.new_empty.default,
        _aten.new_empty_strided.default,
        _aten.empty_permuted.default,
    }
)
"""The ops that return unwritten memory. A replay does not repeat them."""


class QuickDispatch:
    """The first base of a dispatch mode that is not prepared for torch.compile: that costs a third of a dispatch."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class AllocationPoison(QuickDispatch, TorchDispatchMode):
    """Fills each uninitialized allocation as memory of a site.

    `sites` maps the ordinal of an allocation (from 0) to its site; the default is `workspace`. With `keep`, allocations
    are kept alive for `allocations`; without it every site is `workspace`.
    """

    def __init__(self, poison: Poison, sites: Mapping[int, str] | None = None, keep: bool = True) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._poison = poison
        self._sites = sites or {}
        self._kept: list[Tensor] = []
        self._keeps = keep

    @property
    def allocations(self) -> list[int]:
        """Storage addresses in the order of allocation. None is reused."""
        return [storage_address(tensor) for tensor in self._kept]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in (_aten.resize_.default, _aten.resize_as_.default):
            return self._resize(func, args, kwargs or {})
        out = func(*args, **(kwargs or {}))
        if func in ALLOCATIONS:
            self._poison.fill_(whole_storage(out), self._sites.get(len(self._kept), "workspace"))
            if self._keeps:
                self._kept.append(out)
        return out

    def _resize(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensor: Tensor = args[0]
        before = tensor.untyped_storage().nbytes() // tensor.element_size()
        out = func(*args, **kwargs)
        whole = whole_storage(tensor)
        if whole.numel() > before:
            self._poison.fill_(whole[before:], "workspace")
        return out
