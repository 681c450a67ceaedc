"""One launch of a kernel with a corrupted argument: its error, or what it returned."""

from __future__ import annotations

import contextlib

from harness.core.corruptions import Corruption
from harness.core.errors import Refused, SystemUnderTestError
from harness.core.kernels import KernelSpec
from harness.judge.run_records import CorruptedCall, Run
from harness.judge.targets.kernel_call import KernelCall, check_outputs, invoke
from harness.kernels.call import without_interception
from harness.memory.poison.patterns import Poison


def corrupted_call(
    spec: KernelSpec, poison: Poison, call: KernelCall, corruption: Corruption, device: str
) -> CorruptedCall:
    """Make the `call`, which is corrupted. Raises Refused for a kernel that has no such argument."""
    if corruption.change == "plan" and call.plan is None:
        raise Refused(f"{spec.name} is called without a plan here")
    is_in_place = corruption.change == "in_place"
    call.guarded = [item for item in call.guarded if not (is_in_place and item.name in corruption.names)]
    for item in call.guarded:
        item.before = item.watched().clone()
    found = CorruptedCall(corruption, corruption.is_defined(spec.checks_values), Run(poison.pattern))
    # A second launch, to tell outputs from scratch, would not find its input again.
    once = without_interception() if is_in_place else contextlib.nullcontext()
    try:
        with once:
            result = invoke(spec, poison, call.args, call.keywords(is_captured=False))
        outputs = check_outputs(spec, result, call.shapes, call.dtypes, device)
        if corruption.right:
            call.show(found.seen, outputs)
    except (SystemUnderTestError, Refused) as error:
        found.error = error
    return found
