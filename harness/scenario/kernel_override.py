"""Other kernels than a scenario names: the one of `--kernel NAME`, and on CUDA the twin that a graph can capture."""

from __future__ import annotations

from dataclasses import dataclass

from harness.core.cases import Case
from harness.core.catalog import KERNELS
from harness.core.errors import UnknownNameError
from harness.core.registry import nearest
from harness.core.systems import SystemSpec
from harness.scenario.matrix import MatrixPoint


@dataclass(frozen=True, slots=True)
class KernelOverride:
    """A kernel's short name, and the ops that it implements."""

    short_name: str
    ops: frozenset[str]

    @classmethod
    def named(cls, name: str) -> KernelOverride:
        """The registered kernels called `name`, short or as `op/short`. Raises UnknownNameError."""
        specs = [spec for spec in KERNELS if name in (spec.short_name, spec.name)]
        if not specs:
            known = KERNELS.names() if "/" in name else sorted({spec.short_name for spec in KERNELS})
            raise UnknownNameError(f"--kernel: unknown kernel {name!r}; {nearest(name, known)}")
        return cls(specs[0].short_name, frozenset(spec.op for spec in specs))

    def apply(self, system: SystemSpec, op: str | None, point: MatrixPoint) -> MatrixPoint | None:
        """`point` with this kernel for its ops; None if the system uses none of them.

        Its labels begin with `kernel=mine` and have no axis of a replaced kernel.
        """
        replaced = [field for field, field_op in system.kernels_of(op).items() if field_op in self.ops]
        if not replaced:
            return None
        kept = {axis: label for axis, label in point.labels.items() if axis not in (*replaced, "kernel")}
        params = point.params.model_copy(update=dict.fromkeys(replaced, self.short_name))
        return MatrixPoint({"kernel": self.short_name, **kept}, params)


def on_device(case: Case, device: str) -> Case:
    """`case` with the kernels that run on `device`. Its id and seed stay the same."""
    if device != "cuda" or not case.kind.uses_twins:
        return case
    twins = cuda_twins(case.kernels())
    return case.model_copy(update={"params": case.params.model_copy(update=twins)}) if twins else case


def cuda_twins(kernels: dict[str, str]) -> dict[str, str]:
    """Parameter -> short name of the kernel's twin for a GPU, for each of `kernels` that declares one."""
    twins = {field: KERNELS.get(name).cuda_twin for field, name in kernels.items() if name in KERNELS}
    return {field: twin for field, twin in twins.items() if twin}
