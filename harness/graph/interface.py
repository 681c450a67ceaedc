"""What a captured graph promises, whichever device holds it: launches are repeated on the addresses of the capture.

A replay runs no Python, makes no allocation again, and does not see a tensor that replaced a captured one. Memory of a
graph belongs to its pool; what a graph wrote there is valid until any graph of the pool is replayed.
"""

from __future__ import annotations

from typing import Protocol

import torch


class Graph(Protocol):
    """A captured sequence of launches."""

    def replay(self) -> None:
        """Run every recorded launch again, on the memory that the capture saw."""
        ...

    def tensor_at(self, address: int) -> torch.Tensor | None:
        """What the graph reads or writes at `address` (a `data_ptr`), or None when it touches nothing there."""
        ...


class GraphPool(Protocol):
    """Memory shared by the graphs that were captured into it."""

    def sweep(self) -> None:
        """Treat all memory of the pool that may be reused between two replays as reused."""
        ...
