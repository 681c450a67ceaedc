"""Storages behind tensors: their address, their users, and further tensors on the same bytes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten


def tensors_of(value: Any) -> list[Tensor]:
    """The tensors in a nested result, in order: items of tuples and lists, and attributes of metadata objects."""
    found: list[Tensor] = []
    for leaf in tree_flatten(value)[0]:
        values = (leaf,) if isinstance(leaf, Tensor) else getattr(leaf, "__dict__", {}).values()
        found += [item for item in values if isinstance(item, Tensor)]
    return found


def storage_address(tensor: Tensor) -> int:
    """The first address of a tensor's storage."""
    return tensor.untyped_storage().data_ptr()


def use_count(tensor: Tensor) -> int:
    """The number of tensors that share this tensor's storage."""
    storage = tensor.untyped_storage()
    # The storage object itself counts once.
    return int(torch._C._storage_Use_Count(storage._cdata)) - 1


def whole_storage(tensor: Tensor) -> Tensor:
    """All memory of a tensor's storage as one flat tensor of its dtype, gaps of strides included."""
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage())


def alias_of(tensor: Tensor) -> Tensor:
    """A second tensor on the same memory, shape and strides. It keeps the storage alive, not the first tensor."""
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(
        tensor.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride()
    )
