"""The memory behind tensors: its address, all of it, and the tensors in a nested result."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter


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


def whole_storage(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """All memory behind `tensor`, of any shape, as one tensor [n], gaps of strides included.

    Its dtype is `dtype`, or that of the tensor.
    """
    empty = torch.empty(0, dtype=dtype or tensor.dtype, device=tensor.device)
    return empty.set_(tensor.untyped_storage())


def why_unreadable(value: Any) -> str:
    """Why a value is no plain tensor, whose memory can be read, as one clause; empty if it is.

    A subclass of `torch.Tensor` may answer a comparison as it likes. A sparse, a quantised or a
    meta tensor has no memory that holds its elements.
    """
    kind = type(value)
    if not isinstance(value, Tensor):
        return f"as {kind.__name__}; return a torch.Tensor"
    if kind not in (Tensor, Parameter):
        return f"as {kind.__name__}, a subclass of torch.Tensor; return a torch.Tensor itself"
    if value.is_meta:
        return "on device meta, where it has no memory; return a tensor with memory"
    if value.layout != torch.strided or value.is_nested:
        layout = "nested" if value.is_nested else value.layout
        return f"with layout {layout}; return a strided tensor"
    if value.is_quantized:
        return (
            f"as a quantised tensor ({value.dtype}); return its numbers in the type that is"
            " promised"
        )
    if torch._C._functorch.is_functorch_wrapped_tensor(value) or value._is_zerotensor():
        return "without memory of its own; return a plain tensor"
    needed = _bytes_needed(value)
    has = value.untyped_storage().nbytes()
    return (
        f"on a storage of {has} bytes, where it needs {needed}: the storage was resized"
        if has < needed
        else ""
    )


def _bytes_needed(tensor: Tensor) -> int:
    """The bytes of storage that a strided tensor of any shape reaches."""
    if not tensor.numel():
        return 0
    last = sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return (int(tensor.storage_offset()) + last + 1) * tensor.element_size()
