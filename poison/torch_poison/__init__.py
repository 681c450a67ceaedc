"""Poison: uninitialised memory, filled so that a read of it shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_poison.cuda_sweep import CudaPoison


def cuda(pattern: str = "nan", device: Any = None) -> CudaPoison:
    """`with torch_poison.cuda(): ...` fills all free CUDA memory, and every `torch.empty`
    of the block.

    The result's `.sweep()` fills memory that is free again. Raises UnreadableAllocator without a
    CUDA device, or with an allocator that lists no free blocks.
    """
    # Imported late: processes without torch read this package's tables.
    from torch_poison.cuda_sweep import CudaPoison

    return CudaPoison(pattern, device)
