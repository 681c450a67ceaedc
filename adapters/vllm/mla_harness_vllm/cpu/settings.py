"""The memory of a served vLLM on a CPU that can be filled. No torch here."""

from __future__ import annotations

import os

from mla_harness_adapters.plan import ServedMemory
from mla_harness_vllm.serve.settings import BLOCKS

ALLOCATED = ("output", "lse", "workspace")
"""Sites in memory that torch's CPU allocator hands out: it keeps no free blocks to sweep, so each
allocation of a step is filled.
"""
MEMORY = ServedMemory(counts={"allocations": ALLOCATED, "blocks": BLOCKS})
"""The counts are those of `serve.writes.Filled`."""
DEVICE_VARIABLE = "VLLM_TARGET_DEVICE"
"""vLLM's own: what it was built for."""


def serves_on_cpu() -> bool:
    """Whether this process was started to serve on a CPU."""
    return os.environ.get(DEVICE_VARIABLE) == "cpu"
