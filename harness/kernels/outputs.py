"""The outputs of foreign kernels: only plain tensors are judged.

A subclass of `torch.Tensor` may answer a comparison as it likes, and code that reads memory cannot read a sparse, a
quantised or a meta tensor. So an output of another kind is a finding about the kernel, before anything reads it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from harness.core.cause_codes import Code
from harness.core.errors import KernelError
from harness.core.kernels import KernelSpec
from harness.core.ops import OPS
from harness.memory.graph.interface import tensors_of


class BadOutput(KernelError):
    """Outputs of a kernel have a wrong count, kind, shape, type or device."""

    def __init__(self, spec: KernelSpec, problem: str) -> None:
        super().__init__(f"{spec.name} returned {problem}", cause=Code.BAD_OUTPUT, kernel=spec.name)


def plain_outputs(spec: KernelSpec, result: Any) -> Any:
    """What a foreign kernel returned, with its tensors as plain ones on the same memory.

    A tuple or list comes back as a tuple. Tensors lose the graph of autograd and attributes of their own. Raises
    BadOutput for a tensor of another kind; what is no tensor is left to the check of outputs, and metadata, which only
    the kernel reads, is left as it is.
    """
    outputs = OPS.get(spec.op).outputs
    if not outputs:
        return result
    if not outputs[0].shape:
        for tensor in tensors_of(result):
            _plain(spec, outputs[0].name, tensor)
        return result
    if not isinstance(result, tuple | list):
        return _plain(spec, outputs[0].name, result)
    names = [output.name for output in outputs] + ["a further value"] * len(result)
    return tuple(_plain(spec, name, value) for name, value in zip(names, result, strict=False))


def _plain(spec: KernelSpec, name: str, value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    if problem := _problem(value):
        raise BadOutput(spec, f"{name} {problem}")
    if type(value) is Parameter or value.requires_grad or vars(value):
        # An attribute of the object may have the name of a method.
        return Tensor.detach(value)
    return value


def _problem(tensor: Tensor) -> str:
    """Why a tensor is not plain, as one clause; empty if it is."""
    kind = type(tensor)
    if kind not in (Tensor, Parameter):
        return f"as {kind.__name__}, a subclass of torch.Tensor; return a torch.Tensor itself"
    if tensor.is_meta:
        return "on device meta, where it has no memory; return a tensor with memory"
    if tensor.layout != torch.strided or tensor.is_nested:
        layout = "nested" if tensor.is_nested else tensor.layout
        return f"with layout {layout}; return a strided tensor"
    if tensor.is_quantized:
        return f"as a quantised tensor ({tensor.dtype}); return its numbers in the type that is promised"
    if tensor.is_conj() or tensor.is_neg():
        return "as a view that negates when it is read; return out.resolve_neg().resolve_conj()"
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor) or tensor._is_zerotensor():
        return "without memory of its own; return a plain tensor"
    needed, has = _bytes_needed(tensor), tensor.untyped_storage().nbytes()
    return f"on a storage of {has} bytes, where it needs {needed}: the storage was resized" if has < needed else ""


def _bytes_needed(tensor: Tensor) -> int:
    """The bytes of storage that a strided tensor of any shape reaches."""
    if not tensor.numel():
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (int(tensor.storage_offset()) + last + 1) * tensor.element_size()
