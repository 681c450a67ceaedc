"""The memory behind tensors: its address, all of it, and the tensors in a nested result."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def tensors_of(value: Any) -> list[Tensor]:
    """The tensors in a nested result, in order: items of tuples and lists, and attributes of
    metadata objects.
    """
    found: list[Tensor] = []
    _collect(value, found)
    return found


def _collect(value: Any, found: list[Tensor]) -> None:
    """Add the tensors in `value`.

    A capture asks for each op, where torch's own walk costs ten times as much.
    """
    if isinstance(value, Tensor):
        found.append(value)
    elif isinstance(value, (tuple, list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            _collect(item, found)
    else:
        found += [
            item for item in getattr(value, "__dict__", {}).values() if isinstance(item, Tensor)
        ]


def storage_address(tensor: Tensor) -> int:
    """The first address of the storage of `tensor` [...] of any dtype, fp8 included; its own offset
    is not added.
    """
    return tensor.untyped_storage().data_ptr()


def whole_storage(tensor: Tensor) -> Tensor:
    """All memory behind `tensor` [...] as one tensor [n] of its dtype (bfloat16 stays bfloat16),
    gaps of strides included.
    """
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage())
