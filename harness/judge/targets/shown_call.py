"""The evidence of a kernel call: what it returned, and the memory that it may not change."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from torch import Tensor
from torch_poison.patterns import Poison

from harness.core.ops import part_of
from harness.evidence.experts import ChosenExperts
from harness.evidence.observed import Observed
from harness.evidence.records import Run
from harness.evidence.sentinel import Guard
from harness.kernels.plugins import find_kernel
from harness.ops.parts.call import KernelCall, Setting
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


class PreparedCall:
    """A call of an op on a CPU, for code that makes the call itself.

    `args` and `kwargs` are the arguments of the op's contract, with their unowned memory poisoned.
    """

    def __init__(self, op: str, kernel: str, poison: Poison, **params: Any) -> None:
        """Draw inputs by the poison's seed.

        `params` are parameters of the op. The promises of `kernel` decide what may stand in unowned
        memory. Raises UnknownNameError for an unknown kernel.
        """
        setting = Setting(find_kernel(op, kernel), poison, poison.seed, "cpu")
        given = part_of(op, "params:PARAMS")(kernel=kernel, **params)
        self._call: KernelCall = part_of(op, "call:prepare")(given, setting)
        self.args = self._call.args
        self.kwargs = self._call.kwargs

    def show(self, run: Run, *outputs: Tensor) -> None:
        """Add what the call returned, and the memory that it may not change, to a run's evidence.

        `outputs` have the shapes and types of the op's contract.
        """
        show_call(self._call, run, outputs)
