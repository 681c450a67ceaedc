"""Other looks at a tensor's storage: all of its memory, and a second tensor on the same bytes."""

from __future__ import annotations

import torch
from torch import Tensor


def whole_storage(tensor: Tensor) -> Tensor:
    """All memory of a tensor's storage as one flat tensor of its dtype, gaps of an exotic stride included."""
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage())


def alias_of(tensor: Tensor) -> Tensor:
    """A tensor of its own on the same memory, with the same shape and strides: it keeps the storage, not the object."""
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(
        tensor.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride()
    )
