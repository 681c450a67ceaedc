"""`--kernel NAME`: judge one kernel instead of the kernels that scenarios name."""

from __future__ import annotations

from dataclasses import dataclass

from harness.core.catalog import KERNELS
from harness.core.errors import UnknownNameError
from harness.core.params import Params
from harness.core.registry import nearest
from harness.core.systems import SystemSpec


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

    def apply(self, system: SystemSpec, op: str | None, params: Params) -> Params | None:
        """`params` with this kernel for its ops; None if the system uses none of them."""
        fields = self._replaced(system, op)
        return params.model_copy(update=dict.fromkeys(fields, self.short_name)) if fields else None

    def relabel(self, labels: dict[str, str], system: SystemSpec, op: str | None) -> dict[str, str]:
        """The labels of a point with this kernel: `kernel=mine` first, without the axes of replaced kernels."""
        replaced = self._replaced(system, op)
        kept = {axis: label for axis, label in labels.items() if axis not in replaced and axis != "kernel"}
        return {"kernel": self.short_name, **kept}

    def _replaced(self, system: SystemSpec, op: str | None) -> list[str]:
        return [field for field, field_op in system.kernels_of(op).items() if field_op in self.ops]
