"""Calls of a kernel with a corrupted argument: which it is given, and what each came to."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

from torch_poison.patterns import Poison

from harness.core.catalog import planner_of
from harness.core.cause_codes import Code, WhyNot
from harness.core.corruptions import Corruption
from harness.core.errors import Refused, SystemUnderTestError
from harness.core.kernels import KernelSpec
from harness.core.params import KernelParams
from harness.evidence.corrupted import CorruptedCall
from harness.evidence.records import Run
from harness.judge.targets.shown_call import show_call
from harness.kernels.call import without_interception
from harness.ops.parts.call import KernelCall, check_outputs, invoke

MakeCall = Callable[[Corruption | None], KernelCall]
"""Makes the call of a case, with one of its arguments corrupted."""


def why_not_corrupted(
    spec: KernelSpec, params: KernelParams, corruption: Corruption
) -> WhyNot | None:
    """Why a kernel is not called with this argument at all, as one clause; None if it is."""
    if corruption.change == "plan" and not (params.has_plan and planner_of(spec)):
        return WhyNot(f"{spec.name} is called without a plan here", Code.UNSUPPORTED)
    if corruption.change == "in_place" and "out" not in spec.takes:
        return spec.lacks("out")
    return None


def run_corrupted(
    run: Run,
    spec: KernelSpec,
    poison: Poison,
    make: MakeCall,
    corruptions: Iterable[Corruption],
    device: str,
) -> None:
    """Make the call of a case as it should be, and then each corrupted one.

    Adds what they came to to the `run`.

    The first shows that an error is due to the corruption. A kernel that fails it has no other
    finding, and one that refuses it raises Refused. A device that fails ends the run.
    """
    try:
        call = make(None)
        result = invoke(spec, poison, call.args, call.keywords(is_captured=False))
        check_outputs(spec, result, call.shapes, call.dtypes, device)
    except SystemUnderTestError as error:
        run.error = error
        return
    for corruption in corruptions:
        found = corrupted_call(spec, poison, make(corruption), corruption, device)
        run.evidence.append(found)
        run.error = run.error or found.crash
        if found.has_fault:
            return


def corrupted_call(
    spec: KernelSpec, poison: Poison, call: KernelCall, corruption: Corruption, device: str
) -> CorruptedCall:
    """Make the `call`, which is corrupted.

    An error of the kernel, or its refusal, is part of the result.
    """
    is_in_place = corruption.change == "in_place"
    call.guarded = [
        item for item in call.guarded if not (is_in_place and item.name in corruption.names)
    ]
    for item in call.guarded:
        # The corruption may have changed guarded memory, so it counts from now on.
        item.before = item.watched().clone()
    found = CorruptedCall(corruption, corruption.is_judged(spec), Run(poison.pattern))
    # A second launch, to tell outputs from scratch, would not find its input again.
    once = without_interception() if is_in_place else contextlib.nullcontext()
    try:
        with once:
            result = invoke(spec, poison, call.args, call.keywords(is_captured=False))
        outputs = check_outputs(spec, result, call.shapes, call.dtypes, device)
        if corruption.right:
            show_call(call, found.seen, outputs)
    except (SystemUnderTestError, Refused) as error:
        found.error = error
    return found
