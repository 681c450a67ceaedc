"""What a step must do with the requests there are, counted from their state before, not from what
it says; and numbers that an engine must keep besides: launches, and hits of the prefix cache.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from harness.core.engine_params import EngineParams
from harness.core.systems import ENGINE_KERNELS
from harness.engine.engine import ReferenceEngine
from harness.engine.schedule.config import NULL_BLOCK, PAGE_SIZE, num_pages
from harness.engine.schedule.sequence import Sequence
from harness.evidence.counts import Count
from harness.judge.probes.answers import Answers
from harness.judge.probes.notes import Notes

_chosen = functools.partial(Count, oracle="policy")
"""A count of what the scheduler chose.

Another right scheduler may leave room, or take a larger graph.
"""


@dataclass(frozen=True, slots=True)
class Had:
    """The state of a running request before a step. The step changes all of it."""

    num_cached: int
    num_tokens: int
    drafts: tuple[int, ...]

    @property
    def is_decoding(self) -> bool:
        """Whether one token is left to compute, after cached ones."""
        return self.num_cached > 0 and self.num_tokens - self.num_cached == 1


@dataclass(frozen=True, slots=True)
class Before:
    """The requests and the free blocks before a step."""

    running: dict[Sequence, Had]
    waiting: tuple[Sequence, ...]
    num_free: int
    num_needed: int
    """The most blocks that the running requests can lack for this step."""

    @classmethod
    def of(cls, engine: ReferenceEngine) -> Before:
        """The state of an engine that is about to run a step."""
        running = {
            one: Had(one.num_computed_tokens, len(one.tokens), tuple(one.drafts))
            for one in engine.scheduler.running
        }
        needed = sum(_lacks(one, engine.params) for one in running)
        return cls(running, tuple(engine.scheduler.waiting), engine.pool.num_free_blocks, needed)

    def counts(self, engine: ReferenceEngine, notes: Notes) -> list[Count]:
        number = notes.answers.num_steps - 1
        params = engine.params
        where = f"step {number}"
        ran = {item.sequence: item.num_new_tokens for item in notes.answers.newest_step.scheduled}
        decoding = [one for one, had in self.running.items() if had.is_decoding]
        verified = [ran[one] for one in decoding if one in ran]
        preempted = self.running.keys() & set(engine.scheduler.waiting)
        left_out = [one for one in decoding if one not in ran and one in engine.scheduler.running]
        # A budget that is smaller than all decodes has to leave some out.
        has_room = len(decoding) * params.query_len <= params.max_batched_tokens
        not_taken = [
            one
            for one in ran
            if one in self.running and _ends_in_a_right_draft(one, self.running[one])
        ]
        zeros = {
            "decoding requests that a step leaves out": len(left_out) if has_room else 0,
            "requests with a right draft that is not taken": len(not_taken),
            "requests preempted while there is room": len(preempted)
            if self.num_needed <= self.num_free
            else 0,
            "requests that wait while there is room": int(
                not preempted and self._waits_for_nothing(engine, notes.answers, ran)
            ),
        }
        counts = [_chosen(name, 0, found, where) for name, found in zeros.items()]
        cached = {
            # A request that has just started has what it found in the cache.
            one: self.running[one].num_cached if one in self.running else one.num_shared_tokens
            for one in ran
        }
        past = sum(cached[one] + ran[one] > one.max_length for one in ran)
        counts.append(
            Count("requests past the length that they were admitted with", 0, past, where)
        )
        counts.append(
            _chosen(
                "tokens of decoding requests",
                len(verified) * params.query_len,
                sum(verified),
                where,
            )
        )
        if "window" in params.layers:
            counts.append(self._window_pages(params, ran, where))
        if rows := self._rows_of_graph(engine, ran):
            replays = (note for note in notes.twins.replays[-1:] if note.step == number)
            replayed = sum(len(note.replayed) for note in replays)
            counts.append(
                _chosen("rows of the graph that replays a batch of decodes", rows, replayed, where)
            )
        return counts

    def _window_pages(self, params: EngineParams, ran: dict[Sequence, int], where: str) -> Count:
        """The window pages of the requests that ran: all pages, but for the ones that no later
        query sees.
        """
        expected = owned = 0
        for one in ran:
            had = self.running.get(one)
            seen = max(had.num_cached - params.window + 1, 0) // PAGE_SIZE if had else 0
            expected += len(one.blocks) and len(one.blocks) - seen
            # What was given back may stay in the table: whether it is read shows in the answers.
            owned += sum(
                block != NULL_BLOCK for block in one.window_blocks[one.num_evicted_pages :]
            )
        return Count("window pages that requests own", expected, owned, where)

    def _rows_of_graph(self, engine: ReferenceEngine, ran: dict[Sequence, int]) -> int:
        """The rows of the smallest graph that holds a batch of decodes alone; 0 for another batch,
        or without one.

        A prompt that shares all its tokens but one begins with a decode of one token. More are a
        decode if all but the first are drafts.
        """
        params = engine.params
        sizes = (
            [size for size in params.capture_sizes if size >= len(ran)]
            if params.has_graph and ran
            else []
        )
        for one, num_new_tokens in ran.items():
            had = self.running.get(one, Had(one.num_shared_tokens, 0, ()))
            is_decode = had.num_cached > 0 if params.query_len == 1 else had.is_decoding
            if not is_decode or num_new_tokens != params.query_len:
                return 0
        return min(sizes, default=0) * params.query_len

    def _waits_for_nothing(
        self, engine: ReferenceEngine, answers: Answers, ran: dict[Sequence, int]
    ) -> bool:
        """Whether the first request waits after a step with a place, tokens and blocks for it."""
        params = engine.params
        step = answers.newest_step
        waiting = engine.scheduler.waiting
        # A cancelled request took its share of the step.
        if params.cancelled or not self.waiting or self.waiting[0] not in waiting:
            return False
        needed = _lacks(self.waiting[0], params)
        given = (
            len(step.new_attention_blocks)
            + len(step.new_window_blocks)
            + len(step.new_state_blocks)
        )
        shared = sum(one.num_shared_tokens // PAGE_SIZE for one in ran if one not in self.running)
        has_place = len(self.running.keys() | ran) < params.max_num_seqs
        if "kda" in params.layers and params.prefix_caching:
            # No request starts beside a prompt that is cut at the end of a page.
            has_place &= {one.request for one in ran} <= answers.newest_tokens
        return (
            has_place
            and sum(ran.values()) < params.max_batched_tokens
            and needed <= self.num_free - given - shared
        )


def counts_of_steps(declared: tuple[str, ...], decided: list[str]) -> list[Count]:
    """Each step decides what the case declares, if it declares steps."""
    pairs = itertools.zip_longest(declared, decided, fillvalue="nothing") if declared else ()
    return [
        _chosen("what a step decides", *pair, f"step {number}") for number, pair in enumerate(pairs)
    ]


def _lacks(one: Sequence, params: EngineParams) -> int:
    lists = [one.blocks] + ([one.window_blocks] if "window" in params.layers else [])
    pages = num_pages(len(one.tokens) + len(one.drafts))
    return sum(max(pages - len(blocks), 0) for blocks in lists) + (
        "kda" in params.layers and one.state_block is None
    )


def _ends_in_a_right_draft(one: Sequence, had: Had) -> bool:
    """Whether the last token that a request got is its draft, so that the token behind it was there
    to take.
    """
    given = one.tokens[had.num_tokens :]
    return (
        0 < len(given) <= len(had.drafts)
        and given[-1] == had.drafts[len(given) - 1]
        and not one.is_finished
    )


def length(request: tuple[int, int]) -> int:
    """Cached tokens of a request at its end: the last generated token is not cached."""
    prompt, count = request
    return prompt + count - 1


def counts_of_run(
    params: EngineParams, launched: Mapping[str, int], epochs: list[list[Sequence]]
) -> list[Count]:
    """What a whole run must have done: launches, hits of the prefix cache, and none after a
    flush.
    """
    # At least one request finds nothing in a cache that was just emptied: the first to start.
    flushed = [
        min(sequence.num_shared_tokens for sequence in epoch)
        for epoch in epochs[params.epochs :]
        if epoch
    ]
    after = [
        Count("tokens that every request finds in the cache after a flush", 0, tokens)
        for tokens in flushed
    ]
    return [*_of_launches(params, launched), *_of_hits(params, epochs), *after]


def _of_launches(params: EngineParams, launched: Mapping[str, int]) -> list[Count]:
    """Each kernel that every forward needs was launched: an engine that leaves one out may even
    round better.
    """
    fields = {"quantize_kernel", "blocks_kernel", "route_kernel"} - params.idle_kernels()
    names = {f"{ENGINE_KERNELS[field]}/{getattr(params, field)}" for field in fields}
    if params.quantize == "fp8_per_token":
        names.add("quantize_fp8/per-token")
    return [
        Count(f"launches of {name}, or 1 for any", 1, min(launched.get(name, 0), 1))
        for name in sorted(names)
    ]


def _of_hits(params: EngineParams, epochs: list[list[Sequence]]) -> list[Count]:
    """A repeated prompt finds all its full pages but the last token's, if the pool has room for the
    pages of all.

    A LIFO list reuses cached pages although others are free. State changes empty the cache of the
    last epoch.
    """
    # A state, and copies of it at the ends of pages.
    states = 2 if "kda" in params.layers else 0
    pages = sum(
        num_pages(length(request) + params.speculative_tokens) + states
        for request in params.requests
    )
    has_room = (
        pages * (params.epochs + params.flush) <= params.num_blocks - 3
        and params.free_list == "fifo"
    )
    if not (params.prefix_caching and has_room and params.num_hashes is None):
        return []
    # The last page has a latent of the module that depends on the token behind it.
    less = int(params.has_module)
    return [
        Count(
            f"tokens of request {number} that are found in the cache in epoch {epoch}",
            max((later.num_prompt_tokens - 1) // PAGE_SIZE - less, 0) * PAGE_SIZE,
            later.num_shared_tokens,
            oracle="policy",
        )
        for epoch in range(1, min(params.epochs - bool(params.changes), len(epochs)))
        for number, (first, later) in enumerate(zip(epochs[0], epochs[epoch], strict=True))
        if first.is_finished and later.is_finished
    ]
