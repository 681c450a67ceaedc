"""`--kernel NAME` judges one kernel instead of the kernels that scenarios name."""

from __future__ import annotations

from dataclasses import dataclass

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
        KERNELS.add_family(name)
        specs = [spec for spec in KERNELS if name in (spec.short_name, spec.name)]
        if not specs:
            known = (
                KERNELS.names() if "/" in name else sorted({spec.short_name for spec in KERNELS})
            )
            raise UnknownNameError(f"--kernel: unknown kernel {name!r}; {nearest(name, known)}")
        return cls(specs[0].short_name, frozenset(spec.op for spec in specs))

    def apply(self, system: SystemSpec, op: str | None, point: MatrixPoint) -> MatrixPoint | None:
        """`point` with this kernel for its ops; None if no run of the point calls one of them.

        Its labels begin with `kernel=mine` and have no axis of a replaced kernel. A kernel that
        declares shapes gets a variant with sizes that it accepts: `kernel=mine,shapes=deepseek`.
        """
        replaced = {field: op for field, op in system.kernels_of(op).items() if op in self.ops}
        if replaced.keys() <= point.params.idle_kernels():
            return None
        # Its id is another, so its prompts are other tokens, and its answers too.
        named = point.params.varied().but(**dict.fromkeys(replaced, self.short_name))
        params = named
        name = ""
        for spec in (KERNELS.get(f"{op}/{self.short_name}") for op in replaced.values()):
            if spec.shapes is not None:
                params = spec.fit(params, point.labels)
                name = spec.shapes.name
        changed = {field for field, value in named if getattr(params, field) != value}
        kept = {
            axis: label
            for axis, label in point.labels.items()
            if axis not in {*replaced, *changed, "kernel"}
        }
        return MatrixPoint(
            {"kernel": self.short_name} | ({"shapes": name} if changed else {}) | kept, params
        )
