"""The sizes of what `align_experts` returns. No torch here."""

from __future__ import annotations


def aligned_sizes(num_choices: int, num_experts: int, block_size: int) -> tuple[int, int]:
    """The entries and blocks that `align_experts` returns: enough for the worst distribution of
    the choices.
    """
    # Few choices may each open a block of their own. Of many, each expert fills its last block up.
    size = min(num_choices * block_size, num_choices + num_experts * (block_size - 1))
    return size, -(-size // block_size)
