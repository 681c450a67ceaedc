"""Which requests run in each step, with how many tokens and which blocks. No torch."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from harness.core.errors import InputError
from harness.core.seams import seam
from harness.engine.schedule.block_pool import (
    BlockPool,
    Group,
    forget_evicted,
    prefixes,
    up_to_page_end,
)
from harness.engine.schedule.config import PAGE_SIZE, num_pages
from harness.engine.schedule.events import hits, phase_of, preempted
from harness.engine.schedule.sequence import ScheduledSequence, Sequence, Step


@dataclass(slots=True)
class Scheduler:
    """Continuous batching with chunked prefill.

    Each step has a budget of tokens: one for each decoding request, then prompts in order of
    arrival, the last one cut to the budget. Blocks are given as tokens need them. If none is free,
    the latest request is preempted: it loses its blocks and starts over later.

    With `prefix_caching` a prompt starts with pages that other requests computed, and a copy of the
    state at their end. With a `window` (0: no window layers) each request has a second list of
    blocks, freed behind the window.

    `least_admitted` waiting prompts start together, if so many wait and requests are running: a
    step with a prompt cannot replay a graph.
    """

    pool: BlockPool
    max_batched_tokens: int
    max_num_seqs: int
    needs_state: bool
    least_admitted: int = 1
    prefix_caching: bool = False
    window: int = 0
    num_hashes: int | None = None
    zeroed_groups: frozenset[Group] = frozenset()
    has_module: bool = False
    """Whether a module drafts, which keeps latents of its own in each page."""
    events: Counter[str] = field(default_factory=Counter)
    waiting: deque[Sequence] = field(default_factory=deque)
    running: list[Sequence] = field(default_factory=list)
    num_preemptions: int = 0
    _freed: list[int] = field(default_factory=list)
    _new_attention: list[int] = field(default_factory=list)
    _new_state: list[int] = field(default_factory=list)
    _new_window: list[int] = field(default_factory=list)
    _state_copies: list[tuple[int, int]] = field(default_factory=list)
    _hits: dict[str, int] = field(default_factory=dict)

    def add(self, sequence: Sequence) -> None:
        """Queue a request. Raises InputError if it can never fit."""
        needed = self._blocks_for(sequence, sequence.max_length)
        if needed > self.pool.num_usable_blocks:
            raise InputError(
                f"request {sequence.request} needs {needed} blocks, the pool has"
                f" {self.pool.num_usable_blocks}; raise num_blocks or shorten the request"
            )
        self.waiting.append(sequence)

    @property
    def has_work(self) -> bool:
        """Whether any request is not finished."""
        return bool(self.waiting or self.running)

    def schedule(self) -> Step:
        """Choose the tokens of the next step and give them blocks."""
        scheduled: list[ScheduledSequence] = []
        num_preemptions = self.num_preemptions
        # Pages behind a window are given back first: the step may need them.
        for sequence in self.running:
            self._evict(sequence)
        budget = self._schedule_running(scheduled, self.max_batched_tokens)
        # Pages that a request just lost are for those that run. A new prompt would take them, and
        # be preempted next.
        if self.num_preemptions == num_preemptions:
            self._schedule_waiting(scheduled, budget)
        if self.needs_state and self.prefix_caching:
            # The step has not run, so a state block still holds the state after the computed
            # tokens.
            self._keep_states()
        step = Step(
            # Kernels take decodes and prompts by a border, so decodes are the first rows.
            tuple(sorted(scheduled, key=lambda item: not item.is_decode)),
            tuple(self._freed),
            tuple(self._new_attention),
            tuple(self._new_state),
            tuple(self._new_window),
            self._to_zero(),
            tuple(self._state_copies),
        )
        self._freed = []
        self._new_attention = []
        self._new_state = []
        self._new_window = []
        self._state_copies = []
        return step

    def finish(self, sequence: Sequence) -> None:
        """Remove a finished request. With prefix caching, later requests can share its pages."""
        # Before its blocks are released: a block without a hash is unreadable, and is poisoned.
        self._cache(sequence, sequence.num_computed_tokens)
        self.cancel(sequence)

    def cancel(self, sequence: Sequence) -> None:
        """Remove a request, running or waiting, and free its blocks."""
        queue = self.running if sequence in self.running else self.waiting
        queue.remove(sequence)
        self._release(sequence)

    def abort(self, sequence: Sequence) -> None:
        """Between two steps, remove a request that is not finished."""
        self.events[f"abort.{'waiting' if sequence in self.waiting else phase_of(sequence)}"] += 1
        self._cache(sequence, written_at_abort(sequence))
        self.cancel(sequence)

    def _schedule_running(self, scheduled: list[ScheduledSequence], budget: int) -> int:
        # Decodes first: they need one token each, and a long prompt would use up the budget.
        queue = deque(sorted(self.running, key=lambda sequence: not sequence.is_decoding))
        while queue and budget > 0:
            sequence = queue.popleft()
            num_new_tokens = self._chunk(sequence, min(sequence.num_tokens_to_run, budget))
            # Drafts are verified together or not at all, because the decode kernel has one number
            # of query tokens.
            if sequence.drafts and num_new_tokens < sequence.query_len:
                continue
            while not self._fits(sequence, num_new_tokens):
                # The last one is a prompt, or came last: it loses least.
                victim = queue.pop() if queue else sequence
                self._preempt(victim, sequence)
                if victim is sequence:
                    break
            else:
                budget -= self._add(scheduled, sequence, num_new_tokens)
        return budget

    def _schedule_waiting(self, scheduled: list[ScheduledSequence], budget: int) -> None:
        places = self.max_num_seqs - len(self.running)
        if self.waiting and places <= 0:
            self.events["full"] += 1
        # Few free places are kept until enough prompts can start together, as engines that batch
        # prefills do.
        if self.running and places < min(self.least_admitted, len(self.waiting)):
            return
        while self.waiting and budget > 0 and len(self.running) < self.max_num_seqs:
            sequence = self.waiting[0]
            self._share_prefix(sequence)
            # Without room for all its tokens, two prompts may preempt each other.
            if self._blocks_for(sequence, len(sequence.tokens)) > self.pool.num_free_blocks:
                self._start_over(sequence)
                return
            self.events.update(self._hits)
            self.running.append(self.waiting.popleft())
            budget -= self._add(
                scheduled,
                sequence,
                self._chunk(sequence, min(sequence.num_uncomputed_tokens, budget)),
            )

    def _chunk(self, sequence: Sequence, num_new_tokens: int) -> int:
        length = len(sequence.tokens) if self.needs_state and self.prefix_caching else 0
        return up_to_page_end(sequence.num_computed_tokens, num_new_tokens, length)

    def _add(
        self, scheduled: list[ScheduledSequence], sequence: Sequence, num_new_tokens: int
    ) -> int:
        """Run `num_new_tokens` of a request in this step.

        Returns how much of the budget that takes.
        """
        self._give_blocks(sequence, num_new_tokens)
        self._cache(sequence, written_tokens(sequence, num_new_tokens))
        scheduled.append(ScheduledSequence(sequence, num_new_tokens))
        if num_new_tokens < sequence.num_uncomputed_tokens:
            # No other request starts before the next chunk of a prompt that is cut at the end of a
            # page.
            return self.max_batched_tokens
        return num_new_tokens

    def _blocks_for(self, sequence: Sequence, num_tokens: int) -> int:
        """The number of blocks that `sequence` lacks for `num_tokens` tokens."""
        state = int(self.needs_state and sequence.state_block is None)
        pages = num_pages(num_tokens)
        window = pages - len(sequence.window_blocks) if self.window else 0
        return pages - len(sequence.blocks) + window + state

    def _fits(self, sequence: Sequence, num_new_tokens: int) -> bool:
        return (
            self._blocks_for(sequence, sequence.num_computed_tokens + num_new_tokens)
            <= self.pool.num_free_blocks
        )

    def _give_blocks(self, sequence: Sequence, num_new_tokens: int) -> None:
        if self.needs_state and sequence.state_block is None:
            (sequence.state_block,) = given = self.pool.allocate(1)
            self._new_state += given
            if sequence.state_source is not None:
                self._state_copies.append((sequence.state_source, sequence.state_block))
        pages = num_pages(sequence.num_computed_tokens + num_new_tokens)
        given = self.pool.allocate(max(pages - len(sequence.blocks), 0))
        sequence.blocks += given
        self._new_attention += given
        if self.window:
            given = self.pool.allocate(max(pages - len(sequence.window_blocks), 0))
            sequence.window_blocks += given
            self._new_window += given

    def _to_zero(self) -> tuple[int, ...]:
        new: dict[Group, list[int]] = {
            "attention": self._new_attention,
            "window": self._new_window,
            "state": self._new_state,
        }
        return tuple(
            block
            for group, blocks in new.items()
            if group in self.zeroed_groups
            for block in blocks
        )

    def _evict(self, sequence: Sequence) -> None:
        if self.window:
            first = sequence.num_evicted_pages
            last = first_visible(sequence, self.window) // PAGE_SIZE
            self._freed += self.pool.free(sequence.window_blocks[first:last])
            forget_evicted(sequence.window_blocks, last)
            # Kept beside the blocks, so that a release does not free a block twice.
            sequence.num_evicted_pages = last

    def _share_prefix(self, sequence: Sequence) -> None:
        """Start a prompt with cached pages. At least its last token is computed."""
        self._hits = {}
        if not self.prefix_caching or sequence.blocks:
            return
        # The last token is always computed: its logits give the next one, and a cache has no
        # logits.
        wanted = list(prefixes(sequence.tokens[:-1], self.num_hashes, prefix_salt(sequence)))
        shared = self.pool.find(wanted)
        if self.has_module:
            shared = pages_with_drafts(shared)
        num_shared = len(shared)
        if self.needs_state:
            num_shared = self.pool.pages_with_state(wanted, num_shared)
            shared = shared[:num_shared]
            # This request does not own the block, which may be given away in the same step. The
            # runner reads it first.
            sequence.state_source = self.pool.state_after(wanted[:num_shared])
        self._hits = hits(self.pool, shared, num_pages(len(sequence.tokens)))
        self.pool.share(shared)
        sequence.blocks = shared
        sequence.num_kept_pages = num_shared
        sequence.num_computed_tokens = sequence.num_shared_tokens = num_shared * PAGE_SIZE

    def _keep_states(self) -> None:
        """Copy each state at the end of a page into a free block, where prompts with these pages
        find it.
        """
        for sequence in self.running:
            pages = sequence.num_computed_tokens // PAGE_SIZE
            if pages > sequence.num_kept_pages and sequence.state_block is not None:
                sequence.num_kept_pages = pages
                found = prefixes(
                    sequence.tokens[: pages * PAGE_SIZE], self.num_hashes, prefix_salt(sequence)
                )
                self._state_copies += [
                    (sequence.state_block, kept) for kept in self.pool.keep_state(list(found))
                ]

    def _cache(self, sequence: Sequence, num_tokens: int) -> None:
        """Make the full pages of the first `num_tokens` tokens shareable."""
        if self.prefix_caching:
            cached = prefixes(sequence.tokens[:num_tokens], self.num_hashes, prefix_salt(sequence))
            for block, prefix in zip(sequence.blocks, cached, strict=False):
                self.pool.cache(block, prefix)

    def _preempt(self, sequence: Sequence, needy: Sequence) -> None:
        """Take the blocks of a request, for itself or for `needy`.

        It starts over and waits in front of all others.
        """
        self.events.update(preempted(sequence, needy))
        sequence.preempted_at = len(sequence.tokens)
        self.running.remove(sequence)
        self._start_over(sequence)
        # In front, or requests that came later would use its pages first, again and again.
        self.waiting.appendleft(sequence)
        self.num_preemptions += 1

    def start_over(self, sequences: Iterable[Sequence]) -> None:
        """Take the blocks of running requests, which compute all their tokens again.

        They wait in order of arrival.
        """
        for sequence in sequences:
            self.running.remove(sequence)
            self._start_over(sequence)
            self.waiting.append(sequence)
        # By arrival: which requests happened to run says nothing of who came first.
        self.waiting = deque(sorted(self.waiting, key=lambda sequence: sequence.request))

    def _start_over(self, sequence: Sequence) -> None:
        self._release(sequence)
        sequence.num_computed_tokens = sequence.num_shared_tokens = 0
        sequence.num_kept_pages = 0
        sequence.state_source = None
        forget_drafts(sequence)

    def _release(self, sequence: Sequence) -> None:
        # Last pages first: the end of a cached prefix is given away before its beginning.
        blocks = sequence.blocks[::-1] if self.prefix_caching else list(sequence.blocks)
        blocks += sequence.window_blocks[sequence.num_evicted_pages :]
        if sequence.state_block is not None:
            blocks.append(sequence.state_block)
        sequence.blocks = []
        sequence.window_blocks = []
        sequence.state_block = None
        sequence.num_evicted_pages = 0
        self._freed += self.pool.free(blocks)


@seam("adapter.slot-for-adapter")
def prefix_salt(sequence: Sequence) -> int:
    """What tells a prefix from another with the same tokens: the adapter, not the slot that it has
    (vllm-project/vllm#42125).
    """
    return sequence.model[1]


@seam("drafter.last-page-shared")
def pages_with_drafts(shared: list[int]) -> list[int]:
    """The pages of a cached prefix that a module's latents are right in: all but the last.

    The latent of a token is made of the token behind it. Behind the last page that is one of the
    prompt's own, and another prompt had another (vllm-project/vllm#17137).
    """
    return shared[:-1]


@seam("preempt.drafts-kept")
def forget_drafts(sequence: Sequence) -> None:
    """Forget the drafts of a request that starts over.

    Its next step computes tokens and verifies none (vllm-project/vllm#31955).
    """
    sequence.drafts = []


@seam("prefix.hit-before-written")
def written_tokens(sequence: Sequence, num_new_tokens: int) -> int:
    """The number of tokens of a request in this step that other requests may share: the tokens of
    earlier steps.

    The `num_new_tokens` are written when the step runs, and a step may be dropped
    (vllm-project/vllm#50283).
    """
    return sequence.num_computed_tokens


@seam("prefix.whole-prompt-of-aborted")
def written_at_abort(sequence: Sequence) -> int:
    """The number of tokens of an aborted request that others may share: those that it computed.

    Its blocks may be there for more of its prompt (NVIDIA/TensorRT-LLM#12673).
    """
    return sequence.num_computed_tokens


@seam("window.evicted-by-drafts")
def first_visible(sequence: Sequence, window: int) -> int:
    """The first position in the window of the next query token.

    The drafts behind it see later windows, but this token sees its own (ROCm/ATOM#817).
    """
    return max(sequence.num_computed_tokens - window + 1, 0)
