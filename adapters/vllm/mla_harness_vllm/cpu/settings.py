"""The memory of a served vLLM on a CPU that can be filled. No torch here."""

from __future__ import annotations

from mla_harness_adapters.plan import ServedMemory
from mla_harness_vllm.serve.settings import BLOCKS

ALLOCATED = ("output", "lse", "workspace")
"""Sites in memory that torch's CPU allocator hands out: it keeps no free blocks to sweep, so each
allocation of a step is filled.
"""
MEMORY = ServedMemory(counts={"allocations": ALLOCATED, "blocks": BLOCKS})
"""The counts are those of `serve.writes.Filled`."""
