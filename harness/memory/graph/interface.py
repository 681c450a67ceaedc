"""What a captured graph promises, whichever device holds it: launches are repeated on the addresses of the capture.

A replay runs no Python, makes no allocation again, and does not see a tensor that replaced a captured one. Memory of a
graph belongs to its pool; what a graph wrote there is valid until any graph of the pool is replayed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from harness.memory.poison.patterns import Poison


class Graph(Protocol):
    """A captured sequence of launches; `outputs` is what the captured function returned."""

    outputs: Any

    def replay(self) -> None:
        """Run every recorded launch again, on the memory that the capture saw."""
        ...

    def tensor_at(self, address: int) -> Tensor | None:
        """What the graph reads or writes at `address` (a `data_ptr`), or None when it touches nothing there."""
        ...


class GraphPool(Protocol):
    """Memory shared by the graphs that were captured into it."""

    def capture(self, function: Callable[[], Any]) -> Graph:
        """Capture what `function` launches, as a graph of this pool. Raises CaptureError for what no graph can hold."""
        ...

    def sweep(self) -> None:
        """Treat all memory of the pool that may be reused between two replays as reused."""
        ...


def new_pool(device: torch.device, poison: Poison | None = None) -> GraphPool:
    """A pool for graphs on `device`: real ones on CUDA, recordings elsewhere. What is captured need not know."""
    if device.type == "cuda":
        from harness.memory.graph.cuda import CudaGraphPool

        return CudaGraphPool(device, poison)
    from harness.memory.graph.recording import CpuGraphPool

    return CpuGraphPool(poison)
