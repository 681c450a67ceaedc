"""Poison: memory that nobody wrote, filled so that whoever reads it is found out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.memory.poison.cuda_context import CudaPoison


def cuda(pattern: str = "nan", device: Any = None) -> CudaPoison:
    """`with harness.memory.poison.cuda(): ...` fills all free CUDA memory, and every `torch.empty` of the block.

    Usable in anybody's code: the result has `.sweep()`, to fill what has become free again. Raises
    UnreadableAllocator, with the reason, where there is no CUDA device or its allocator lists no free blocks.
    """
    # Loaded when asked for: the tables of this package are also read by processes that never load torch.
    from harness.memory.poison.cuda_context import make

    return make(pattern, device)
