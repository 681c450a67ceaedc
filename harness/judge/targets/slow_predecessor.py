"""A kernel call behind a predecessor that is slow to write its inputs, and slow to read memory of
its outputs.

A kernel that may begin early and does not wait reads the input before it is written, or writes an
output while the predecessor still reads that memory. See :mod:`harness.memory.graph.early_launch`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor
from torch_poison.storages import whole_storage

from harness.core.errors import CaptureError, Refused
from harness.core.kernels import KernelSpec
from harness.core.ops import OPS
from harness.evidence.observed import Observed
from harness.evidence.sentinel import Guard
from harness.judge.targets.shown_call import observed_of
from harness.kernels.call import BoundKernel
from harness.ops.parts.call import KernelCall, by_rows

UNREAD = 0x5A
"""Each byte of an output before the launch."""
Launch = Callable[[Sequence[tuple[Tensor, Tensor]]], tuple[Tensor, ...]]
"""Launches the call behind copies (source, target) of contiguous tensors. Returns the outputs."""


Late = Callable[[Launch], list[Observed]]
"""Launches a call while one of its inputs is written late. Returns what to judge."""


def restoring(spec: KernelSpec, call: KernelCall) -> Callable[[], None]:
    """A function that restores the arguments that the kernel writes to what they hold now."""
    written = (
        [tensor for tensor in call.args if isinstance(tensor, Tensor)]
        if not OPS.get(spec.op).outputs
        else []
    )
    kept = [(whole_storage(tensor), whole_storage(tensor).clone()) for tensor in written]

    def restore() -> None:
        for memory, content in kept:
            memory.copy_(content)

    return restore


def late_inputs(
    spec: KernelSpec, call: KernelCall, restore: Callable[[], None]
) -> Iterator[tuple[str, Late]]:
    """Each input by its name, and the launch that has it written late, behind `restore` (see
    :func:`restoring`).

    Until then floats are NaN, and integers belong to the next row. An input without another valid
    value is left out.
    """
    for name, argument in zip(OPS.get(spec.op).positional, call.args, strict=True):
        if (
            isinstance(argument, Tensor)
            and argument.numel()
            and (early := _stand_in(argument)) is not None
        ):
            yield name, partial(_written_late, call, restore, argument, early)


def _written_late(
    call: KernelCall, restore: Callable[[], None], argument: Tensor, early: Tensor, launch: Launch
) -> list[Observed]:
    """See `Late`: the argument, of any shape, holds `early` before it is written."""
    restore()
    memory = whole_storage(argument)
    right = memory.clone()
    argument.copy_(early)
    outputs = tuple(output.cpu() for output in launch([(right, memory)]))
    observed = observed_of(call, outputs)
    # The next input is written late beside right ones.
    memory.copy_(right)
    return observed


def _stand_in(argument: Tensor) -> Tensor | None:
    """The content of an input [rows, ...] of any dtype until it is written, late.

    None if that would be its own content.
    """
    if argument.is_floating_point():
        return torch.full_like(argument, float("nan"), dtype=torch.float32).to(argument.dtype)
    rolled = argument.roll(1, 0)
    return None if torch.equal(rolled, argument) else rolled


def slow_reader(spec: KernelSpec, launch: Launch) -> Iterator[Guard]:
    """Each output that the predecessor reads late: all of it must be as it was before the
    launch.
    """
    for output, tensor in zip(OPS.get(spec.op).outputs, launch([]), strict=False):
        if not tensor.is_contiguous() or not tensor.numel():
            continue
        memory = tensor.view(-1).view(torch.uint8)
        memory.fill_(UNREAD)
        seen = torch.zeros_like(memory)
        # The reader copies while the kernel runs, so it sees any byte that was written too early.
        before = torch.full_like(memory, UNREAD)
        launch([(memory, seen)])
        yield Guard(
            f"memory of {output.name} while its reader ran",
            None,
            by_rows(before.cpu()),
            by_rows(seen.cpu()),
        )


def behind_slow_predecessor(spec: KernelSpec, call: KernelCall) -> Launch:
    """The call behind a slow predecessor, on CUDA.

    Raises Refused if its first launch waits by itself, or if no graph can hold the call.
    """
    from harness.memory.graph.early_launch import EarlyLaunch

    if reason := spec.why_not_graph("cuda"):
        raise Refused(reason.sentence)
    # Without poison: a fill of an allocation would be the predecessor of the kernel.
    function = partial(BoundKernel(spec, None), *call.args, **call.keywords(is_captured=False))
    function()
    try:
        early = EarlyLaunch(function, call.args[0].device)
    except CaptureError as error:
        raise Refused(str(error)) from error
    if early.is_early:
        return early
    later = (
        f"; {early.num_early} later launches follow its own kernels early"
        if early.num_early
        else ""
    )
    raise Refused(f"the first launch of {spec.name} begins when its predecessor has ended{later}")
