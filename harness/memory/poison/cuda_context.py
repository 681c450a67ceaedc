"""Poison for one's own code on a GPU: free memory is filled at entry, and what is allocated inside is filled too."""

from __future__ import annotations

from types import TracebackType

import torch

from harness.core.catalog import SITES
from harness.memory.poison.allocations import AllocationPoison
from harness.memory.poison.cuda_sweep import CudaSweep, Swept, fill_word
from harness.memory.poison.patterns import Poison


class CudaPoison:
    """`with harness.memory.poison.cuda() as poison:` fills free CUDA memory, then every `torch.empty` of the block.

    The first reaches whatever allocates through torch's caching allocator, C++ and CUDA extensions included, once;
    `poison.sweep()` does it again, for example before each step. The second sees memory that is freed and reused
    inside the block, where it is allocated through torch's dispatcher.
    """

    def __init__(self, poison: Poison, device: torch.device | None = None) -> None:
        self.poison = poison
        self._sweep = CudaSweep.of(device)
        self._mode: AllocationPoison | None = None

    def sweep(self) -> Swept:
        """Fill all memory that is free now; returns how many blocks and bytes. No host sync."""
        return self._sweep(fill_word(self.poison, "workspace"))

    def __enter__(self) -> CudaPoison:
        self.sweep()
        self._mode = AllocationPoison(self.poison, keep=False)
        self._mode.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        assert self._mode is not None
        self._mode.__exit__(kind, value, tb)  # type: ignore[no-untyped-call]
        self._mode = None


def make(pattern: str = "nan", device: torch.device | str | int | None = None) -> CudaPoison:
    """Poison of all sites with `pattern`. Raises UnreadableAllocator where free memory cannot be listed."""
    chosen = torch.device("cuda", device) if isinstance(device, int) else device
    return CudaPoison(
        Poison(pattern, frozenset(SITES.names())), torch.device(chosen) if isinstance(chosen, str) else chosen
    )
