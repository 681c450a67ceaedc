"""Storages behind tensors: whose memory it is, and how many look at it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten


def tensors_of(value: Any) -> list[Tensor]:
    """The tensors of a result in order: of tuples and lists, and among the attributes of metadata objects."""
    found: list[Tensor] = []
    for leaf in tree_flatten(value)[0]:
        if isinstance(leaf, Tensor):
            found.append(leaf)
        else:
            found += [item for item in getattr(leaf, "__dict__", {}).values() if isinstance(item, Tensor)]
    return found


def storage_address(tensor: Tensor) -> int:
    """Where a tensor's storage begins."""
    return tensor.untyped_storage().data_ptr()


def use_count(tensor: Tensor) -> int:
    """How many tensors share this tensor's storage."""
    storage = tensor.untyped_storage()
    # The storage object in hand counts once itself.
    return int(torch._C._storage_Use_Count(storage._cdata)) - 1
