"""The slots that a writer stores to."""

from __future__ import annotations

from torch import Tensor

from harness.core.seams import seam
from harness.memory.bounds import check_indices


@seam("index.slot-minus-one-wraps")
def stored_slots(slot_mapping: Tensor, num_slots: int) -> tuple[Tensor, Tensor]:
    """The tokens [n] int64 with a slot of `slot_mapping` [T] that is not negative, and their slots
    [n] int64.

    For an index as in Python, slot -1 is the last slot of the last block (vllm-project/vllm#43869).
    Raises IllegalAddress for a slot at or past `num_slots`.
    """
    kept = (slot_mapping >= 0).nonzero().flatten()
    return kept, check_indices(slot_mapping[kept], num_slots, "slot_mapping")
