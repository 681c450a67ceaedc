"""The parameters of a call of each op. No torch here."""

from __future__ import annotations

from collections.abc import Mapping

from harness.core.ops import PartsOfOps, part_of
from harness.core.params import KernelParams

KERNEL_PARAMS: Mapping[str, type[KernelParams]] = PartsOfOps(
    "params.py", lambda op: part_of(op, "params:PARAMS")
)
"""The parameters of a kernel case, by op. A planner is judged through its decode.

A model is imported when it is first used.
"""
