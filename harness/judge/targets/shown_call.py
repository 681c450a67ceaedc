"""The evidence of a kernel call: what it returned, and the memory that it may not change."""

from __future__ import annotations

from dataclasses import fields

from torch import Tensor

from harness.evidence.experts import ChosenExperts
from harness.evidence.observed import Observed
from harness.evidence.records import Run
from harness.evidence.sentinel import Guard
from harness.ops.parts.call import KernelCall
from harness.ops.parts.judged import Rows


def show_call(call: KernelCall, run: Run, outputs: tuple[Tensor, ...]) -> None:
    """Add what the `call` returned, and the memory that it may not change, to the evidence of its
    `run`.

    outputs [...] have the shapes and dtypes of the op, such as bfloat16 and float32, on the
    kernel's device.
    """
    # Oracles read small tensors many times, and each read would wait for the GPU.
    on_host = tuple(output.cpu() for output in outputs)
    run.evidence += observed_of(call, on_host)
    run.evidence += [
        ChosenExperts(one.name, one.ids, one.num_experts) for one in call.chosen(on_host)
    ]
    run.evidence += [
        Guard(item.name, item.site, item.before.cpu(), item.watched().cpu(), item.row_name)
        for item in call.guarded
    ]


def observed_of(call: KernelCall, outputs: tuple[Tensor, ...]) -> list[Observed]:
    """What to judge of the outputs [...] of a `call` (bfloat16, float32, int32), as records of the
    judge.
    """
    names = [field.name for field in fields(Rows)]
    return [
        Observed(**{name: getattr(rows, name) for name in names}) for rows in call.observe(outputs)
    ]
