"""The outputs of foreign kernels: only plain tensors are judged.

A subclass of `torch.Tensor` may answer a comparison as it likes, and code that reads memory cannot
read a sparse, a quantised or a meta tensor. So an output of another kind is a finding about the
kernel, before anything reads it.
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


class BadOutput(KernelError):
    """Outputs of a kernel have a wrong count, kind, shape, type or device."""

    def __init__(self, spec: KernelSpec, problem: str) -> None:
        super().__init__(f"{spec.name} returned {problem}", cause=Code.BAD_OUTPUT, kernel=spec.name)


def wrong_count(spec: KernelSpec, num_values: int) -> str:
    """What is wrong with a kernel that returned so many values, as one clause; empty if nothing
    is.
    """
    names = [output.name for output in spec.outputs]
    if num_values == len(names):
        return ""
    has_lse = OPS.get(spec.op).gives_lse
    alone = (
        ", or declare gives_lse=False and return out alone" if has_lse and num_values == 1 else ""
    )
    mend = alone if spec.is_plugin else ""
    return f"{num_values} values; return {len(names)}: {', '.join(names)}{mend}"


def plain_outputs(spec: KernelSpec, result: Any) -> Any:
    """What a foreign kernel returned, with its tensors as plain ones: a tuple if it returned a
    tuple or a list.

    Tensors lose the graph of autograd and attributes of their own. Metadata, which only the kernel
    reads, stays as it is. Raises BadOutput for a value that is no tensor, and for a tensor of
    another kind.
    """
    names = [output.name for output in spec.outputs]
    if not names or not spec.outputs[0].shape:
        return result
    is_several = isinstance(result, tuple | list)
    values = tuple(result) if is_several else (result,)
    problem = wrong_count(spec, len(values))
    if problem and not all(isinstance(value, Tensor) for value in values):
        raise BadOutput(spec, problem)
    names += ["a further value"] * len(values)
    plain = tuple(_plain(spec, name, value) for name, value in zip(names, values, strict=False))
    return plain if is_several else plain[0]


def is_plain(value: Any) -> bool:
    """Whether a value is a tensor whose memory can be read."""
    return not _problem(value)


def _plain(spec: KernelSpec, name: str, value: Any) -> Tensor:
    if problem := _problem(value):
        raise BadOutput(spec, f"{name} {problem}")
    tensor: Tensor = value
    if tensor.is_conj() or tensor.is_neg():
        return tensor.resolve_conj().resolve_neg()
    if type(tensor) is Parameter or tensor.requires_grad or vars(tensor):
        # An attribute of the object may have the name of a method.
        return Tensor.detach(tensor)
    return tensor


def _problem(tensor: Any) -> str:
    """Why a value is no plain tensor, as one clause; empty if it is."""
    kind = type(tensor)
    if not isinstance(tensor, Tensor):
        return f"as {kind.__name__}; return a torch.Tensor"
    if kind not in (Tensor, Parameter):
        return f"as {kind.__name__}, a subclass of torch.Tensor; return a torch.Tensor itself"
    if tensor.is_meta:
        return "on device meta, where it has no memory; return a tensor with memory"
    if tensor.layout != torch.strided or tensor.is_nested:
        layout = "nested" if tensor.is_nested else tensor.layout
        return f"with layout {layout}; return a strided tensor"
    if tensor.is_quantized:
        return (
            f"as a quantised tensor ({tensor.dtype}); return its numbers in the type that is"
            " promised"
        )
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor) or tensor._is_zerotensor():
        return "without memory of its own; return a plain tensor"
    needed = _bytes_needed(tensor)
    has = tensor.untyped_storage().nbytes()
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
