"""Faults of prefix caches and windows: pages found before they are written, and pages kept too long."""

from __future__ import annotations

from harness.engine.schedule.sequence import Sequence


def tokens_scheduled(sequence: Sequence, num_new_tokens: int) -> int:
    """Count the tokens of the step that is being scheduled as written already. If the step is dropped, later prompts
    find unwritten pages (PR 50283)."""
    return sequence.num_computed_tokens + num_new_tokens


def keep_evicted(window_blocks: list[int], num_evicted: int) -> None:
    """Leave freed blocks in the table; other requests get them soon (PR 42273)."""
