"""The parameters of a call of each op. No torch here."""

from __future__ import annotations

from harness.core.ops import ops_with, part_of
from harness.core.params import KernelParams

KERNEL_PARAMS: dict[str, type[KernelParams]] = {
    op: part_of(op, "params:PARAMS") for op in ops_with("params.py")
}
"""The parameters of a kernel case, by op. A planner is judged through its decode."""
