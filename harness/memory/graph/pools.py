"""The pool for captured graphs of a device."""

from __future__ import annotations

import torch

from harness.memory.graph.interface import GraphPool
from harness.memory.graph.recording import CpuGraphPool
from harness.memory.poison.patterns import Poison


def new_pool(device: torch.device, poison: Poison | None = None) -> GraphPool:
    """A pool for graphs on `device`: CUDA graphs, or recordings on a CPU."""
    if device.type == "cuda":
        from harness.memory.graph.cuda import CudaGraphPool

        return CudaGraphPool(device, poison)
    return CpuGraphPool(poison)
