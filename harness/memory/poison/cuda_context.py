"""Poison for any code on a GPU: free memory is filled at entry, and allocations within the block too."""

from __future__ import annotations

from types import TracebackType

import torch

from harness.core.catalog import SITES
from harness.memory.poison.allocations import AllocationPoison
from harness.memory.poison.cuda_sweep import CudaSweep, Swept, fill_word
from harness.memory.poison.patterns import Poison


class CudaPoison:
    """`with harness.memory.poison.cuda() as poison:` fills free CUDA memory, then every `torch.empty` of the block.

    The sweep reaches all users of torch's caching allocator, C++ and CUDA extensions included, once; `poison.sweep()`
    repeats it, for example before each step. Memory reused within the block is filled if torch's dispatcher allocates.
    """

    def __init__(self, poison: Poison, device: torch.device | None = None) -> None:
        self.poison = poison
        self._sweep = CudaSweep.of(device)
        self._mode: AllocationPoison | None = None

    def sweep(self) -> Swept:
        """Fill all free memory. Returns the numbers of blocks and bytes. No host sync."""
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
