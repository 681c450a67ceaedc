"""Slots of padding that are real addresses."""

from __future__ import annotations


def slot_zero(trash_block: int | None = None) -> int:
    """Leave slots of padding and of dummy batches at 0: the first slot of the null block (vllm-project/vllm#39444)."""
    return 0
