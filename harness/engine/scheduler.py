"""Which requests run in a step, with how many tokens, on which blocks. No torch."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from harness.engine.block_pool import BlockPool
from harness.engine.config import num_pages
from harness.engine.sequence import Sequence
from harness.errors import InputError


@dataclass(frozen=True, slots=True)
class ScheduledSequence:
    """A request and how many of its uncomputed tokens run in this step."""

    sequence: Sequence
    num_new_tokens: int

    @property
    def is_decode(self) -> bool:
        """Whether it is one token on top of cached ones, which the decode kernel handles."""
        return self.num_new_tokens == 1 and self.sequence.num_computed_tokens > 0


@dataclass(frozen=True, slots=True)
class Step:
    """One step's work: decoding requests first, and the blocks that changed hands since the step before.

    A block may be in `freed_blocks` and in a list of new ones: it was freed first.
    """

    scheduled: tuple[ScheduledSequence, ...]
    freed_blocks: tuple[int, ...]
    new_attention_blocks: tuple[int, ...]
    new_state_blocks: tuple[int, ...]


@dataclass(slots=True)
class Scheduler:
    """Continuous batching with chunked prefill.

    Each step spends a budget of tokens: first one token for each decoding request, then prompts in order of arrival,
    the last of them cut where the budget ends. Blocks are given as tokens need them. When none is free, the latest
    request is preempted: it loses its blocks and computes all its tokens again later.
    """

    pool: BlockPool
    max_batched_tokens: int
    max_num_seqs: int
    needs_state: bool
    waiting: deque[Sequence] = field(default_factory=deque)
    running: list[Sequence] = field(default_factory=list)
    num_preemptions: int = 0
    _freed: list[int] = field(default_factory=list)
    _new_attention: list[int] = field(default_factory=list)
    _new_state: list[int] = field(default_factory=list)

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
        budget = self._schedule_running(scheduled, self.max_batched_tokens)
        if self.num_preemptions == preempted:
            self._schedule_waiting(scheduled, budget)
        step = Step(
            tuple(sorted(scheduled, key=lambda item: not item.is_decode)),
            tuple(self._freed),
            tuple(self._new_attention),
            tuple(self._new_state),
        )
        self._freed, self._new_attention, self._new_state = [], [], []
        return step

    def finish(self, sequence: Sequence) -> None:
        """Take a finished request out and its blocks back."""
        self.running.remove(sequence)
        self._release(sequence)

    def _schedule_running(self, scheduled: list[ScheduledSequence], budget: int) -> int:
        queue = deque(sorted(self.running, key=lambda sequence: not sequence.is_decoding))
        while queue and budget > 0:
            sequence = queue.popleft()
            num_new_tokens = min(sequence.num_uncomputed_tokens, budget)
            while not self._fits(sequence, num_new_tokens):
                victim = queue.pop() if queue else sequence
                self._preempt(victim)
                if victim is sequence:
                    break
            else:
                self._give_blocks(sequence, num_new_tokens)
                scheduled.append(ScheduledSequence(sequence, num_new_tokens))
                budget -= num_new_tokens
        return budget

    def _schedule_waiting(self, scheduled: list[ScheduledSequence], budget: int) -> None:
        while self.waiting and budget > 0 and len(self.running) < self.max_num_seqs:
            sequence = self.waiting[0]
            # Room for all its tokens, though blocks are given chunk by chunk: else two prompts may preempt each other.
            if self._blocks_for(sequence, len(sequence.tokens)) > self.pool.num_free_blocks:
                return
            self.running.append(self.waiting.popleft())
            num_new_tokens = min(sequence.num_uncomputed_tokens, budget)
            self._give_blocks(sequence, num_new_tokens)
            scheduled.append(ScheduledSequence(sequence, num_new_tokens))
            budget -= num_new_tokens

    def _blocks_for(self, sequence: Sequence, num_tokens: int) -> int:
        """Blocks that `sequence` still lacks to have `num_tokens` cached."""
        state = int(self.needs_state and sequence.state_block is None)
        return num_pages(num_tokens) - len(sequence.blocks) + state

    def _fits(self, sequence: Sequence, num_new_tokens: int) -> bool:
        needed = self._blocks_for(sequence, sequence.num_computed_tokens + num_new_tokens)
        return needed <= self.pool.num_free_blocks

    def _give_blocks(self, sequence: Sequence, num_new_tokens: int) -> None:
        if self.needs_state and sequence.state_block is None:
            (sequence.state_block,) = given = self.pool.allocate(1)
            self._new_state += given
        missing = num_pages(sequence.num_computed_tokens + num_new_tokens) - len(sequence.blocks)
        given = self.pool.allocate(max(missing, 0))
        sequence.blocks += given
        self._new_attention += given

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._release(sequence)
        sequence.num_computed_tokens = 0
        self.waiting.appendleft(sequence)
        self.num_preemptions += 1

    def _release(self, sequence: Sequence) -> None:
        blocks = list(sequence.blocks)
        if sequence.state_block is not None:
            blocks.append(sequence.state_block)
        sequence.blocks, sequence.state_block = [], None
        self.pool.free(blocks)
        self._freed += blocks
