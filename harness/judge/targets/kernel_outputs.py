"""The call of a kernel and the check of its outputs: a wrong shape is a finding about the kernel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from harness.core.errors import KernelError
from harness.core.kernels import KernelSpec
from harness.core.ops import OPS, Output
from harness.kernels.call import BoundKernel
from harness.memory.bounds import bad_index, raise_bad_indices
from harness.memory.poison.patterns import Poison

Shape = tuple[int, ...]


class BadOutput(KernelError):
    """Outputs of a kernel have a wrong count, shape, type or device."""


def invoke(spec: KernelSpec, poison: Poison, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a kernel under poison and wait for it. Raises IllegalAddress or KernelError for any error of the kernel."""
    is_on_gpu = any(isinstance(arg, Tensor) and arg.is_cuda for arg in args)
    if is_on_gpu and not poison.is_natural:
        from harness.memory.poison.cuda_sweep import CudaSweep, fill_word

        # Reaches scratch that an extension allocates without torch's dispatcher.
        CudaSweep.of()(fill_word(poison, "workspace"))
    result = BoundKernel(spec, poison)(*args, **kwargs)
    if is_on_gpu:
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            reason = str(error).strip().partition("\n")[0]
            raise bad_index() or KernelError(f"{spec.name} failed on the device: {reason}") from error
        raise_bad_indices()
    return result


def shape_of(output: Output, dims: dict[str, int]) -> Shape:
    """The shape of an output in numbers, with the sizes of letters from `dims`."""
    return tuple(int(letter) if letter.isdigit() else dims[letter] for letter in output.shape.split())


def check_outputs(
    spec: KernelSpec, result: Any, shapes: tuple[tuple[Shape, ...], ...], dtypes: tuple[torch.dtype, ...], device: str
) -> tuple[Tensor, ...]:
    """The outputs as a tuple of tensors. `shapes` lists for each output the shapes it may have.

    Raises BadOutput with the wrong output, its property, and the promised one.
    """
    declared = OPS.get(spec.op).outputs
    if not declared:
        return ()
    values = tuple(result) if isinstance(result, tuple | list) else (result,)
    names = ", ".join(output.name for output in declared)
    if len(values) != len(declared):
        raise BadOutput(f"{spec.name} returned {len(values)} values; return {len(declared)}: {names}")
    for output, value, allowed, dtype in zip(declared, values, shapes, dtypes, strict=True):
        problem = _problem(value, allowed, dtype, device)
        if problem:
            raise BadOutput(f"{spec.name} returned {output.name} {problem}")
    return tuple(value.detach() for value in values)


def _problem(value: Any, allowed: tuple[Shape, ...], dtype: torch.dtype, device: str) -> str | None:
    if not isinstance(value, Tensor):
        return f"as {type(value).__name__}; return a torch.Tensor"
    if value.layout != torch.strided:
        return f"with layout {value.layout}; return a strided tensor"
    if tuple(value.shape) not in allowed:
        return f"of shape {list(value.shape)}; {' or '.join(str(list(shape)) for shape in allowed)} is promised"
    if value.dtype != dtype:
        return f"of type {value.dtype}; {dtype} is promised"
    if value.device.type != torch.device(device).type:
        return f"on {value.device}; it belongs on {device}"
    return None
