"""Faults of sequences: a prefix that is not the one that was asked for, and requests taken for what
they are not.
"""

from __future__ import annotations

from harness.engine.schedule.block_pool import BlockPool, Prefix
from harness.engine.schedule.sequence import ScheduledSequence, Sequence


def by_length(sequence: Sequence, num_new_tokens: int) -> bool:
    """Take each request with as many tokens as a decode for one (vllm-project/vllm#53059,
    vllm-project/vllm#32118).
    """
    return num_new_tokens == sequence.query_len


def single_tokens_first(scheduled: tuple[ScheduledSequence, ...]) -> list[ScheduledSequence]:
    """Sort by one token or more, the latest request first: it has the place of one that finished
    (vllm-project/vllm#55894).
    """
    return sorted(scheduled, key=lambda item: (item.num_new_tokens > 1, -item.sequence.request))


def first_half(pages: list[Prefix]) -> Prefix:
    """Take the key of half the pages: one of smaller blocks, with the same number
    (vllm-project/vllm-ascend#10296 of the port to Ascend).
    """
    return pages[(len(pages) - 1) // 2]


def one_page_ahead(pool: BlockPool, wanted: list[Prefix], num_found: int) -> int:
    """Look for a state one page further than pages were found (vllm-project/vllm#50630)."""
    depths = range(min(num_found + 1, len(wanted)), 0, -1)
    return next((n for n in depths if pool.state_after(wanted[:n]) is not None), 0)


def all_that_is_found(found: list[int | None]) -> list[int]:
    """Count each page that is cached (llm-d/llm-d-inference-sim#705)."""
    return [block for block in found if block is not None]


def whole_prompt(sequence: Sequence) -> int:
    """Count all tokens of an aborted request (NVIDIA/TensorRT-LLM#12673)."""
    return len(sequence.tokens)


def visible_to_last_draft(sequence: Sequence, window: int) -> int:
    """Begin the window where that of the last draft begins (ROCm/ATOM#817)."""
    return max(sequence.num_computed_tokens + len(sequence.drafts) - window + 1, 0)
