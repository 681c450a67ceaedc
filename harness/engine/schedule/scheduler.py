"""Which requests run in a step, with how many tokens, on which blocks. No torch."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from harness.core.errors import InputError
from harness.core.seams import seam
from harness.engine.schedule.block_pool import BlockPool, block_hashes
from harness.engine.schedule.config import NULL_BLOCK, PAGE_SIZE, num_pages
from harness.engine.schedule.sequence import Sequence
from harness.engine.schedule.zeroing import Group


@dataclass(frozen=True, slots=True)
class ScheduledSequence:
    """A request and how many of its uncomputed tokens run in this step."""

    sequence: Sequence
    num_new_tokens: int

    @property
    def is_decode(self) -> bool:
        """Whether it is `query_len` tokens on top of cached ones, which the decode kernel handles.

        More than one are a token and its drafts; as many of a prompt are not, because nothing is verified there.
        """
        sequence = self.sequence
        if self.num_new_tokens != sequence.query_len or sequence.num_computed_tokens == 0:
            return False
        return sequence.query_len == 1 or sequence.is_decoding


@dataclass(frozen=True, slots=True)
class Step:
    """One step's work: decoding requests first, and the blocks that changed hands since the step before.

    A block may be in `freed_blocks` and in a list of new ones: it was freed first. `freed_blocks` are those whose
    content nobody can read any more; `blocks_to_zero` are new ones that the runner must zero before anything runs.
    """

    scheduled: tuple[ScheduledSequence, ...]
    freed_blocks: tuple[int, ...]
    new_attention_blocks: tuple[int, ...]
    new_state_blocks: tuple[int, ...]
    new_window_blocks: tuple[int, ...] = ()
    blocks_to_zero: tuple[int, ...] = ()


@dataclass(slots=True)
class Scheduler:
    """Continuous batching with chunked prefill.

    Each step spends a budget of tokens: first one token for each decoding request, then prompts in order of arrival,
    the last of them cut where the budget ends. Blocks are given as tokens need them. When none is free, the latest
    request is preempted: it loses its blocks and computes all its tokens again later.

    With `prefix_caching` a prompt starts with the pages that others computed for the same tokens. With a `window` (0:
    no layer has one) each request has a second list of blocks, of which those that no later query sees are given back.

    `least_admitted` prompts start together: a step with a prompt cannot replay a graph, so a server whose graphs are
    to matter lets free places gather. Nobody waits for more prompts than there are, or while nothing runs.
    """

    pool: BlockPool
    max_batched_tokens: int
    max_num_seqs: int
    needs_state: bool
    least_admitted: int = 1
    prefix_caching: bool = False
    window: int = 0
    zeroed_groups: frozenset[Group] = frozenset()
    waiting: deque[Sequence] = field(default_factory=deque)
    running: list[Sequence] = field(default_factory=list)
    num_preemptions: int = 0
    _freed: list[int] = field(default_factory=list)
    _new_attention: list[int] = field(default_factory=list)
    _new_state: list[int] = field(default_factory=list)
    _new_window: list[int] = field(default_factory=list)

    def add(self, sequence: Sequence) -> None:
        """Queue a request. Raises InputError when it could never fit, so that no request waits for ever."""
        needed = self._blocks_for(sequence, sequence.max_length)
        if needed > self.pool.num_usable_blocks:
            raise InputError(
                f"request {sequence.request} needs {needed} blocks, the pool has {self.pool.num_usable_blocks}; "
                "raise num_blocks or shorten the request"
            )
        self.waiting.append(sequence)

    @property
    def has_work(self) -> bool:
        """Whether any request is not finished."""
        return bool(self.waiting or self.running)

    def schedule(self) -> Step:
        """Choose this step's tokens and give them blocks."""
        scheduled: list[ScheduledSequence] = []
        preempted = self.num_preemptions
        for sequence in self.running:
            self._evict(sequence)
        budget = self._schedule_running(scheduled, self.max_batched_tokens)
        if self.num_preemptions == preempted:
            self._schedule_waiting(scheduled, budget)
        step = Step(
            tuple(sorted(scheduled, key=lambda item: not item.is_decode)),
            tuple(self._freed),
            tuple(self._new_attention),
            tuple(self._new_state),
            tuple(self._new_window),
            self._to_zero(),
        )
        self._freed, self._new_attention, self._new_state, self._new_window = [], [], [], []
        return step

    def finish(self, sequence: Sequence) -> None:
        """Take a finished request out and its blocks back; with prefix caching others can still find what it wrote."""
        self._cache(sequence, sequence.num_computed_tokens)
        self.cancel(sequence)

    def cancel(self, sequence: Sequence) -> None:
        """Take a running request out and its blocks back, whatever became of its last step."""
        self.running.remove(sequence)
        self._release(sequence)

    def _schedule_running(self, scheduled: list[ScheduledSequence], budget: int) -> int:
        queue = deque(sorted(self.running, key=lambda sequence: not sequence.is_decoding))
        while queue and budget > 0:
            sequence = queue.popleft()
            num_new_tokens = min(sequence.num_tokens_to_run, budget)
            if sequence.drafts and num_new_tokens < sequence.query_len:
                continue
            while not self._fits(sequence, num_new_tokens):
                victim = queue.pop() if queue else sequence
                self._preempt(victim)
                if victim is sequence:
                    break
            else:
                budget -= self._add(scheduled, sequence, num_new_tokens)
        return budget

    def _schedule_waiting(self, scheduled: list[ScheduledSequence], budget: int) -> None:
        places = self.max_num_seqs - len(self.running)
        if self.running and places < min(self.least_admitted, len(self.waiting)):
            return
        while self.waiting and budget > 0 and len(self.running) < self.max_num_seqs:
            sequence = self.waiting[0]
            self._share_prefix(sequence)
            # Room for all its tokens, though blocks are given chunk by chunk: else two prompts may preempt each other.
            if self._blocks_for(sequence, len(sequence.tokens)) > self.pool.num_free_blocks:
                self._start_over(sequence)
                return
            self.running.append(self.waiting.popleft())
            budget -= self._add(scheduled, sequence, min(sequence.num_uncomputed_tokens, budget))

    def _add(self, scheduled: list[ScheduledSequence], sequence: Sequence, num_new_tokens: int) -> int:
        self._give_blocks(sequence, num_new_tokens)
        self._cache(sequence, written_tokens(sequence, num_new_tokens))
        scheduled.append(ScheduledSequence(sequence, num_new_tokens))
        return num_new_tokens

    def _blocks_for(self, sequence: Sequence, num_tokens: int) -> int:
        """Blocks that `sequence` still lacks to have `num_tokens` cached."""
        state = int(self.needs_state and sequence.state_block is None)
        pages = num_pages(num_tokens)
        window = pages - len(sequence.window_blocks) if self.window else 0
        return pages - len(sequence.blocks) + window + state

    def _fits(self, sequence: Sequence, num_new_tokens: int) -> bool:
        needed = self._blocks_for(sequence, sequence.num_computed_tokens + num_new_tokens)
        return needed <= self.pool.num_free_blocks

    def _give_blocks(self, sequence: Sequence, num_new_tokens: int) -> None:
        if self.needs_state and sequence.state_block is None:
            (sequence.state_block,) = given = self.pool.allocate(1)
            self._new_state += given
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
            "attention": self._new_attention, "window": self._new_window, "state": self._new_state,
        }  # fmt: skip
        return tuple(block for group, blocks in new.items() if group in self.zeroed_groups for block in blocks)

    def _evict(self, sequence: Sequence) -> None:
        """Give back the window blocks that no later query of `sequence` sees."""
        if self.window:
            first, last = sequence.num_evicted_pages, first_visible(sequence, self.window) // PAGE_SIZE
            self._freed += self.pool.free(sequence.window_blocks[first:last])
            forget_evicted(sequence.window_blocks, last)
            sequence.num_evicted_pages = last

    def _share_prefix(self, sequence: Sequence) -> None:
        """Start a prompt with the pages that hold its first tokens already; at least its last token is computed."""
        if self.prefix_caching and not sequence.blocks:
            shared = self.pool.find(block_hashes(sequence.tokens[:-1], PAGE_SIZE))
            self.pool.share(shared)
            sequence.blocks = shared
            sequence.num_computed_tokens = sequence.num_shared_tokens = len(shared) * PAGE_SIZE

    def _cache(self, sequence: Sequence, num_tokens: int) -> None:
        """Let later prompts find the full pages among the first `num_tokens` tokens."""
        if self.prefix_caching:
            hashes = block_hashes(sequence.tokens[:num_tokens], PAGE_SIZE)
            for block, content in zip(sequence.blocks, hashes, strict=False):
                self.pool.cache(block, content)

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._start_over(sequence)
        self.waiting.appendleft(sequence)
        self.num_preemptions += 1

    def _start_over(self, sequence: Sequence) -> None:
        self._release(sequence)
        sequence.num_computed_tokens = sequence.num_shared_tokens = 0
        sequence.drafts = []

    def _release(self, sequence: Sequence) -> None:
        # Last pages first where they stay cached: of a prefix the end is to be given away before its beginning.
        blocks = sequence.blocks[::-1] if self.prefix_caching else list(sequence.blocks)
        blocks += sequence.window_blocks[sequence.num_evicted_pages :]
        if sequence.state_block is not None:
            blocks.append(sequence.state_block)
        sequence.blocks, sequence.window_blocks, sequence.state_block = [], [], None
        sequence.num_evicted_pages = 0
        self._freed += self.pool.free(blocks)


@seam("prefix.hit-before-written")
def written_tokens(sequence: Sequence, num_new_tokens: int) -> int:
    """How many tokens of a request that is being scheduled have their latents in memory, so that others may share them.

    Those of earlier steps; the `num_new_tokens` of this one are written when it runs, and a step can be dropped before
    it does (PR 50283).
    """
    return sequence.num_computed_tokens


def first_visible(sequence: Sequence, window: int) -> int:
    """The first position that the next query token of `sequence` sees in a layer with this window."""
    return max(sequence.num_computed_tokens - window + 1, 0)


@seam("window.evicted-blocks-in-table")
def forget_evicted(window_blocks: list[int], num_evicted: int) -> None:
    """Put the null block in the place of the first `num_evicted` blocks of a request, which are given back.

    Their next owner writes what it likes, and a decode kernel that masks by multiplying reads the whole table
    (PR 42273).
    """
    window_blocks[:num_evicted] = [NULL_BLOCK] * num_evicted
