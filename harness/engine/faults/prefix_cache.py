"""Pages that others find too early, and pages that stay in a table too long."""

from __future__ import annotations

from harness.engine.schedule.sequence import Sequence


def tokens_scheduled(sequence: Sequence, num_new_tokens: int) -> int:
    """Count the tokens of the step that is being scheduled as written already: when it is dropped, later prompts find
    pages that nobody wrote (vllm-project/vllm#50283)."""
    return sequence.num_computed_tokens + num_new_tokens


def keep_evicted(window_blocks: list[int], num_evicted: int) -> None:
    """Leave blocks that were given back in the table; they belong to others soon (vllm-project/vllm#42273)."""
