"""Calls of a kernel after one part of its inputs changed, beside the call before."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor
from torch_poison.patterns import Poison

from harness.core.kernels import KernelSpec
from harness.core.ops import OPS
from harness.evidence.influence import Influence
from harness.ops.parts.call import KernelCall, check_outputs, invoke
from harness.ops.parts.changed import InputChange, changes

EACH = 8
"""Changes of each argument. Of a kernel that reads half of it, one is missed in 256 cases."""


def influences(
    spec: KernelSpec,
    poison: Poison,
    call: KernelCall,
    outputs: tuple[Tensor, ...],
    changed: Callable[[InputChange], KernelCall],
    device: str,
    each: int = EACH,
) -> Iterator[Influence]:
    """Call the kernel once for each change of its inputs, `each` of every argument.

    outputs [rows, ...] are those of `call`, in the dtypes of the op, such as bfloat16 and float32.
    `changed` makes the call after a change. Raises BadOutput as for any call.
    """
    before = call.observe(tuple(output.cpu() for output in outputs))
    for change in changes(OPS.get(spec.op), each):
        other = changed(change)
        # Not every argument of every case has something to change.
        if not other.changed:
            continue
        result = invoke(spec, poison, other.args, other.keywords(is_captured=False))
        found = check_outputs(spec, result, other.shapes, other.dtypes, device)
        after = other.observe(tuple(output.cpu() for output in found))
        for one, then in zip(before, after, strict=False):
            if (
                one.expected is None
                or then.expected is None
                or one.tensor.shape != then.tensor.shape
            ):
                continue
            yield Influence(
                other.changed,
                one.name,
                one.tensor,
                then.tensor,
                one.expected,
                then.expected,
                one.live & then.live,
                one.describe,
            )
