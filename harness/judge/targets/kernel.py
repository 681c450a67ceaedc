"""The target that judges one kernel of one op: poisoned inputs, one call, and only then the float64 reference."""

from __future__ import annotations

from typing import Any

from harness.core.errors import IllegalAddress, KernelError
from harness.core.kernel_spec import KernelSpec
from harness.core.params import KERNEL_PARAMS, KernelParams
from harness.core.records import Case
from harness.judge.run_records import Guard, Run
from harness.judge.targets.kernel_call import Setting
from harness.judge.targets.kernel_calls import build
from harness.judge.targets.kernel_outputs import check_outputs, invoke
from harness.kernels.plugins import find_kernel
from harness.memory.poison.patterns import Poison


class KernelTarget:
    """One op's kernel on one set of inputs. `case.params` holds the op beside the parameters of its model.

    Raises UnknownNameError when nothing registered has the kernel's name.
    """

    def __init__(self, case: Case, device: str = "cpu") -> None:
        self.op, self.params = _parameters(case)
        self.spec: KernelSpec = find_kernel(self.op, self.params.kernel)
        self.device = device
        self._seed = case.seed

    def run(self, poison: Poison) -> Run:
        """Poison the inputs' unowned memory, call the kernel, then compute what it should have returned.

        An illegal address, an exception of the kernel or an output that breaks the contract ends the run early and
        stands in `Run.error`.
        """
        run = Run(poison.pattern)
        try:
            call = build(self.op, self.params, Setting(self.spec, poison, self._seed, self.device))
            result = invoke(self.spec, poison, call.args, call.kwargs)
            outputs = check_outputs(self.spec, result, call.shapes, call.dtypes, self.device)
        except (IllegalAddress, KernelError) as error:
            run.error = error
            return run
        # Judges look at small tensors many times, which a GPU is slow at: every look would wait for it.
        on_host = tuple(output.cpu() for output in outputs)
        run.observed = call.observe(on_host)
        run.chosen = call.chosen(on_host)
        run.guards = [Guard(item.name, item.site, item.before.cpu(), item.watched().cpu()) for item in call.guarded]
        return run


def _parameters(case: Case) -> tuple[str, KernelParams]:
    values: dict[str, Any] = dict(case.params)
    op = values.pop("op")
    return op, KERNEL_PARAMS[op].model_validate(values)
