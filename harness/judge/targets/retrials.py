"""Calls of a kernel in a cell that are made if its answer is wrong: they say whether it cheats."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch_poison.patterns import Poison

from harness.cell.client import Cell
from harness.core.errors import Refused, SystemUnderTestError
from harness.core.kernels import KernelSpec
from harness.evidence.honest import Retrial
from harness.evidence.observed import Observed
from harness.judge.targets.shown_call import observed_of
from harness.ops.parts.call import KernelCall, check_outputs, invoke

MOST_NEW_PROCESSES = 2
"""For each kernel: a process imports the kernel's file, which may take seconds."""


def retrial(
    spec: KernelSpec,
    cell: Cell,
    poison: Poison,
    call: KernelCall,
    make: Callable[[], KernelCall],
    earlier: object,
    device: str,
) -> Retrial:
    """The further calls for an answer to `call`, of a kernel in a `cell`.

    `make` makes the same call again. `earlier` is what the kernel returned to the call before it.
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

    has_more = cell.num_new_processes < MOST_NEW_PROCESSES
    return Retrial(
        spec.name,
        earlier=lambda: guarded(lambda: [] if earlier is None else shown(earlier, call)),
        again=lambda: guarded(again),
        elsewhere=(lambda: guarded(elsewhere)) if has_more else None,
    )


def _on_host(outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(output.cpu() for output in outputs)
