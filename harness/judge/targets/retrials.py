"""Calls of a kernel in a cell that are made if its answer is wrong: they say whether it cheats."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch_poison.patterns import Poison

from harness.cell.client import Cell
from harness.core.errors import Refused, SystemUnderTestError
from harness.core.kernels import KernelSpec
from harness.evidence.honest import Retrial
from harness.evidence.influence import Influence
from harness.evidence.observed import Observed
from harness.judge.targets.influence import influences
from harness.judge.targets.shown_call import observed_of
from harness.ops.parts.call import KernelCall, check_outputs, invoke

MOST = 2
"""Costly trials of each kind for each kernel: a new process imports the kernel's file, and each
change of an input needs a reference.
"""
EACH = 4
"""Changes of each argument."""


def retrial(
    spec: KernelSpec,
    cell: Cell,
    poison: Poison,
    call: KernelCall,
    outputs: tuple[Tensor, ...],
    make: Callable[..., KernelCall],
    earlier: object,
    device: str,
) -> Retrial:
    """The further calls for the `outputs` [...] of a `call`, of a kernel in a `cell`.

    `make` makes the same call again, with `change` a changed one. `earlier` is what the kernel
    returned to the call before. Outputs have the shapes and dtypes of the op, such as bfloat16.
    """

    def shown(result: object, of: KernelCall) -> list[Observed]:
        outputs = check_outputs(spec, result, of.shapes, of.dtypes, device)
        return observed_of(of, _on_host(outputs))

    def guarded(trial: Callable[[], list[Observed]]) -> list[Observed]:
        try:
            return trial()
        except (SystemUnderTestError, Refused):
            return []

    def again() -> list[Observed]:
        same = make()
        return shown(invoke(spec, poison, same.args, same.keywords(is_captured=False)), same)

    def elsewhere() -> list[Observed]:
        cell.num_new_processes += 1
        cell.load()
        return again()

    def changed() -> list[Influence]:
        cell.num_changed_trials += 1
        try:
            return list(
                influences(spec, poison, call, outputs, lambda one: make(change=one), device, EACH)
            )
        except (SystemUnderTestError, Refused):
            return []

    return Retrial(
        spec.name,
        earlier=lambda: guarded(lambda: [] if earlier is None else shown(earlier, call)),
        influences=changed if cell.num_changed_trials < MOST else None,
        again=lambda: guarded(again),
        elsewhere=(lambda: guarded(elsewhere)) if cell.num_new_processes < MOST else None,
    )


def _on_host(outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(output.cpu() for output in outputs)
