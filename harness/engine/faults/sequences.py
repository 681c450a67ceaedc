"""Faults of sequences: a prefix that is not the one that was asked for, and requests taken for what they are not."""

from __future__ import annotations

from harness.engine.schedule.block_pool import BlockPool, Prefix
from harness.engine.schedule.sequence import ScheduledSequence, Sequence, Step


def keep_entry(pool: BlockPool, block: int) -> None:
    """Leave the prefix of a block that is given away in the table (local-inference-lab/vllm#480)."""


def leave_in_list(pool: BlockPool, block: int) -> None:
    """Count an owner more and leave the block in the free list (jjang-ai/vmlx#198)."""


def trust_hash(held: Prefix, wanted: Prefix) -> bool:
    """Compare no tokens (openvinotoolkit/openvino.genai#3722)."""
    return True


def by_length(sequence: Sequence, num_new_tokens: int) -> bool:
    """Take each request with as many tokens as a decode for one (PR 53059, PR 32118)."""
    return num_new_tokens == sequence.query_len


def single_tokens_first(scheduled: tuple[ScheduledSequence, ...]) -> list[ScheduledSequence]:
    """Sort by one token or more, the latest request first: it has the place of one that finished (PR 55894)."""
    return sorted(scheduled, key=lambda item: (item.num_new_tokens > 1, -item.sequence.request))


def keep_drafts(sequence: Sequence) -> None:
    """Keep the drafts of a preempted request (PR 31955)."""


def past_the_page(num_computed: int, num_new: int, num_tokens: int) -> int:
    """Cut no chunk, so that a state is kept with the tokens behind its page (PR 53912)."""
    return num_new


def first_half(pages: list[Prefix]) -> Prefix:
    """Take the key of half the pages: one of smaller blocks, with the same number (PR 10296 of the port to Ascend)."""
    return pages[(len(pages) - 1) // 2]


def no_copies(step: Step) -> tuple[tuple[int, int], ...]:
    """Let a prompt that found its prefix go on from what its own block holds (ROCm/ATOM#1417)."""
    return ()


def one_page_ahead(pool: BlockPool, wanted: list[Prefix], num_found: int) -> int:
    """Look for a state one page further than pages were found (PR 50630)."""
    depths = range(min(num_found + 1, len(wanted)), 0, -1)
    return next((n for n in depths if pool.state_after(wanted[:n]) is not None), 0)
