"""What happened to a request, by the names of :data:`harness.core.serving_params.Event`.

No torch.
"""

from __future__ import annotations

from harness.engine.schedule.block_pool import BlockPool
from harness.engine.schedule.config import PAGE_SIZE
from harness.engine.schedule.sequence import Sequence


def phase_of(sequence: Sequence) -> str:
    """What a running request does between two steps:

    `prefill` (or computing again), `decode`, or `verify` drafts.
    """
    if not sequence.is_decoding:
        return "prefill"
    return "verify" if sequence.drafts else "decode"


def preempted(sequence: Sequence, needy: Sequence) -> list[str]:
    """The events of a request that loses its blocks to `needy`, which may be itself."""
    phase = phase_of(sequence)
    events = ["preempt.itself" if sequence is needy and phase == "prefill" else f"preempt.{phase}"]
    if sequence.num_computed_tokens % PAGE_SIZE == 0:
        events.append("preempt.page_end")
    if sequence.preempted_at == len(sequence.tokens):
        events.append("preempt.twice")
    if sequence.num_evicted_pages:
        events.append("preempt.evicted")
    return events


def verified(num_taken: int, num_drafts: int) -> list[str]:
    """The events of a request that verified its drafts and took the first `num_taken`."""
    if not num_taken:
        return ["drafts.none"]
    return ["drafts.all" if num_taken == num_drafts else "drafts.some"]


def hits(pool: BlockPool, shared: list[int], num_pages: int) -> dict[str, int]:
    """The cached pages that a prompt of `num_pages` is about to share, by kind of hit."""
    evicted_next = pool.next_blocks(num_pages - len(shared))
    kinds = {"hit": shared, "hit.free": pool.free_blocks, "hit.evicted_next": evicted_next}
    return {kind: len(set(shared).intersection(blocks)) for kind, blocks in kinds.items()}
