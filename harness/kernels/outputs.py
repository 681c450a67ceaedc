"""The outputs of foreign kernels: only plain tensors are judged.

A subclass of `torch.Tensor` may answer a comparison as it likes, and code that reads memory cannot
read a sparse, a quantised or a meta tensor. So an output of another kind is a finding about the
kernel, before anything reads it.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import Parameter
from torch_poison.storages import why_unreadable

from harness.core.cause_codes import Code
from harness.core.errors import KernelError
from harness.core.kernels import KernelSpec
from harness.core.ops import OPS


class BadOutput(KernelError):
    """Outputs of a kernel have a wrong count, kind, shape, type or device."""

    def __init__(self, spec: KernelSpec, problem: str, *, cause: Code = Code.BAD_OUTPUT) -> None:
        super().__init__(f"{spec.name} returned {problem}", cause=cause, kernel=spec.name)


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
    return not why_unreadable(value)


def _plain(spec: KernelSpec, name: str, value: Any) -> Tensor:
    if problem := why_unreadable(value):
        raise BadOutput(spec, f"{name} {problem}")
    tensor: Tensor = value
    if tensor.is_conj() or tensor.is_neg():
        # The bits of a lazy conjugate, or of a lazy negative, are not its values.
        return tensor.resolve_conj().resolve_neg()
    if type(tensor) is Parameter or tensor.requires_grad or vars(tensor):
        # An attribute of the object may have the name of a method.
        return Tensor.detach(tensor)
    return tensor
