"""The target of one kernel of one op: poisoned inputs, one call, and only then the float64 reference."""

from __future__ import annotations

from typing import Any

from harness.core.cases import Case
from harness.core.errors import IllegalAddress, KernelError
from harness.core.kernels import KernelSpec
from harness.core.params import KernelParams, MlaDecodeParams
from harness.judge.run_records import Guard, Run
from harness.judge.target import Target
from harness.judge.targets.kernel_call import Setting
from harness.judge.targets.kernel_calls import build
from harness.judge.targets.kernel_outputs import check_outputs, invoke
from harness.kernels.plugins import find_kernel
from harness.memory.poison.patterns import Poison


class KernelTarget(Target):
    """One op's kernel on one set of inputs. Raises UnknownNameError for an unknown kernel."""

    def __init__(self, case: Case, device: str = "cpu", **more: Any) -> None:
        super().__init__(case, device, **more)
        self.op, self.params = case.op or "", case.params_as(KernelParams)
        self.spec: KernelSpec = find_kernel(self.op, self.params.kernel)

    @classmethod
    def why_not(cls, case: Case, device: str = "cpu", fault: str | None = None) -> str:
        """See :meth:`Target.why_not`."""
        spec = find_kernel(case.op or "", case.params_as(KernelParams).kernel)
        needs_window = isinstance(case.params, MlaDecodeParams) and case.params.window is not None
        return f"{spec.name} has no argument `window`" if needs_window and not spec.windowed else ""

    @property
    def reader(self) -> str:
        """See :attr:`Target.reader`."""
        return self.spec.name

    def run(self, poison: Poison) -> Run:
        """Poison the inputs' unowned memory, call the kernel, then compute the expected outputs.

        An illegal address, an exception of the kernel or a bad output ends the run early and is `Run.error`.
        """
        run = Run(poison.pattern)
        try:
            call = build(self.op, self.params, Setting(self.spec, poison, self.case.seed, self.device))
            result = invoke(self.spec, poison, call.args, call.kwargs)
            outputs = check_outputs(self.spec, result, call.shapes, call.dtypes, self.device)
        except (IllegalAddress, KernelError) as error:
            run.error = error
            return run
        # Oracles read small tensors many times, and each read would wait for the GPU.
        on_host = tuple(output.cpu() for output in outputs)
        run.observed = call.observe(on_host)
        run.chosen = call.chosen(on_host)
        run.guards = [Guard(item.name, item.site, item.before.cpu(), item.watched().cpu()) for item in call.guarded]
        return run
