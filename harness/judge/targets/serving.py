"""Serves the requests of a case: they arrive and are aborted at their steps, and after each step
all is counted.

The counts are kept promises of an engine, whatever its scheduler and its block pool say of
themselves:

- a block is free or owned, and in the list of free blocks once; the pool counts as many owners as
  requests have blocks
- a block with two owners is a full page with the same tokens in both, so neither writes to it
- a step has at most `max_batched_tokens` tokens, and at most `max_num_seqs` requests run
- a batch of decodes alone is replayed, by the smallest graph that holds it, and without graphs
  nothing is
- a decoding request verifies all its drafts and takes the right ones, and no prompt takes its place
  in a step
- all requests end within some steps
- no request runs while one waits that arrived before it, none waits or is preempted while there is
  room
- each request gets its tokens, with one row of logits for each, and all blocks are free at the end
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from harness.core.errors import InputError, KernelError, Refused
from harness.core.serving_params import Change
from harness.engine.changes import apply_change, load_adapters
from harness.engine.engine import ReferenceEngine
from harness.engine.model.transformer import CausalLM
from harness.engine.schedule.config import PAGE_SIZE
from harness.engine.schedule.sequence import Sequence
from harness.evidence.counts import Count
from harness.judge.probes.answers import Answers
from harness.judge.probes.notes import Notes
from harness.judge.targets.step_counts import Before


@dataclass(slots=True)
class Served:
    """An engine after all requests: the requests of each epoch, its first step, and the counts of
    all steps.
    """

    engine: ReferenceEngine
    notes: Notes
    epochs: list[list[Sequence]] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    counts: list[Count] = field(default_factory=list)
    aborted: dict[int, int] = field(default_factory=dict)
    """Aborted request -> the number of its tokens when it was aborted."""
    happened: list[str] = field(default_factory=list)
    """State changes, preemptions, aborts and prefix hits, in their order."""
    refusal: Refused | None = None
    """What a kernel refused in the last step. The tokens before it can be judged."""

    def counts_at_end(self) -> list[Count]:
        """All blocks are free.

        Each request has its tokens, and none after an abort, with a row of logits for each.
        """
        engine = self.engine
        pool = self.engine.pool
        counts = [
            Count(
                "free blocks after the last request", pool.num_usable_blocks, pool.num_free_blocks
            )
        ]
        if engine.params.pad_tokens == "skip":
            # All but the null block and the trap.
            counts.append(
                Count(
                    "blocks that requests may own",
                    engine.params.num_blocks - 2,
                    pool.num_usable_blocks,
                )
            )
        if not engine.params.has_graph:
            counts.append(
                Count("replays of an engine without graphs", 0, len(self.notes.twins.replays))
            )
        # Requests are numbered as they came, whatever number the engine gave them.
        for number, sequence in enumerate(sequence for epoch in self.epochs for sequence in epoch):
            request = sequence.request
            given = sequence.num_generated_tokens
            expected = 0 if number in engine.params.cancelled else sequence.max_tokens
            counts.append(
                Count(f"tokens of request {number}", self.aborted.get(request, expected), given)
            )
            rows = len(self.notes.answers.logits.get(request, ()))
            counts.append(Count(f"rows of logits of request {number}", given, rows))
        return counts


Checkpoints = Callable[[int], CausalLM]
"""The model after a number of reloads."""


def serve(
    engine: ReferenceEngine, notes: Notes, prompts: list[list[int]], checkpoints: Checkpoints
) -> Served:
    """Serve `prompts` in each epoch, and again after a flush if the case has one.

    Stops where requests do not end, and where a kernel refuses a call. `notes` is the probe of the
    engine.
    """
    served = Served(engine, notes)
    params = engine.params
    if params.adapters:
        load_adapters(engine, engine.adapters)
    for epoch in range(params.epochs + params.flush):
        if epoch == params.epochs:
            engine.flush()
        served.starts.append(notes.answers.num_steps)
        # In the last epoch, so that the epochs before fill the cache that a change has to empty.
        changes = params.changes if epoch == params.epochs - 1 else ()
        if not _serve_epoch(served, prompts, changes, checkpoints):
            break
    return served


def most_steps(engine: ReferenceEngine) -> int:
    """The steps within which an epoch ends: one request makes progress in each, and may start over
    for each other.
    """
    params = engine.params
    alone = sum(
        -(-(prompt + count) // params.max_batched_tokens) + count + 1
        for prompt, count in params.requests
    )
    return max(params.arrivals, default=0) + len(params.requests) * alone


def _serve_epoch(
    served: Served,
    prompts: list[list[int]],
    changes: tuple[tuple[Change, int], ...],
    checkpoints: Checkpoints,
) -> bool:
    """Serve `prompts` once.

    Returns whether all requests ended within `most_steps`, and no kernel refused a call.
    """
    engine = served.engine
    params = served.engine.params
    arrivals = list(
        itertools.islice(itertools.chain(params.arrivals, itertools.repeat(0)), len(prompts))
    )
    living: dict[int, Sequence] = {}
    for step in range(most_steps(engine)):
        # A change while nothing runs would prove nothing. The first change of a step has the
        # requests start over.
        can_change = not step or bool(engine.scheduler.running)
        for change in (change for change, at in changes if at == step and can_change):
            apply_change(
                engine, change, checkpoints(engine.num_reloads + change.startswith("reload"))
            )
            served.happened.append(change)
        for request in (request for request, at in enumerate(arrivals) if at == step):
            length, count = params.requests[request]
            prompt = _tokens_before(params.chains[request : request + 1], living) + prompts[request]
            living[request] = _added(
                engine, prompt[:length], count, *params.adapters[request : request + 1]
            )
        for request in (
            request for request, at in params.aborts if at == step and request in living
        ):
            if living[request] in (*engine.scheduler.running, *engine.scheduler.waiting):
                served.aborted[living[request].request] = living[request].num_generated_tokens
                engine.abort(living[request])
                served.happened.append("abort")
        if not engine.scheduler.has_work and step >= max(arrivals):
            break
        before = Before.of(engine)
        events = engine.scheduler.events.copy()
        try:
            engine.step()
        except Refused as refusal:
            served.refusal = refusal
            break
        served.happened += _events_of_step(engine.scheduler.events - events)
        served.counts += [
            *_counts_of_step(engine, served.notes.answers),
            *before.counts(engine, served.notes),
        ]
    served.epochs.append([living[request] for request in sorted(living)])
    left = len(engine.scheduler.running) + len(engine.scheduler.waiting)
    served.counts.append(
        Count("requests that did not end", 0, left, f"after {most_steps(engine)} steps")
    )
    return not left


def _events_of_step(new: Counter[str]) -> list[str]:
    """What a step did to requests, by kind: it takes blocks back before it looks for prefixes."""
    kinds = {name.partition(".")[0] for name in new}
    return [kind for kind in ("preempt", "hit") if kind in kinds]


def _added(engine: ReferenceEngine, prompt: list[int], count: int, slot: int = 0) -> Sequence:
    """The parameters of a case have room for each request, so an engine that refuses one is at
    fault.
    """
    try:
        return engine.add_request(prompt, count, slot)
    except InputError as error:
        raise KernelError(f"the engine refuses a request that it has room for: {error}") from error


def _tokens_before(chain: tuple[str, ...], living: dict[int, Sequence]) -> list[int]:
    """The conversation that a chain such as `0+` goes on with: the prompt and the answer of that
    request.
    """
    before = living.get(int(chain[0][:-1])) if chain and chain[0].endswith("+") else None
    return before.tokens if before else []


def _counts_of_step(engine: ReferenceEngine, answers: Answers) -> list[Count]:
    pool = engine.pool
    params = engine.params
    running = engine.scheduler.running
    waiting = engine.scheduler.waiting
    free = pool.free_blocks
    owned = Counter(block for sequence in running for block in _blocks_of(sequence))
    where = f"step {answers.num_steps - 1}"
    num_free = len(set(free) - owned.keys())
    scheduled = answers.newest_step.scheduled
    num_tokens = sum(item.num_new_tokens for item in scheduled)
    shared = {block for block, count in owned.items() if count > 1}
    first = min((sequence.request for sequence in waiting), default=engine.num_requests)
    overtaking = sum(sequence.request > first for sequence in running)
    zeros = {
        "blocks that are free twice, or free and owned": len(free) - num_free,
        "blocks with two owners and different tokens": len(torn_blocks(running, shared)),
        "requests above max_num_seqs": max(
            len(running) - params.max_num_seqs, len(scheduled) - params.max_num_seqs, 0
        ),
        "tokens above max_batched_tokens": max(num_tokens - params.max_batched_tokens, 0),
    }
    return [
        Count(
            "blocks that are free or owned",
            pool.num_usable_blocks,
            len(owned.keys() | set(free)),
            where,
        ),
        Count("owners of blocks", owned.total(), pool.num_references, where),
        *(Count(name, 0, found, where) for name, found in zeros.items()),
        Count("requests that run while an earlier one waits", 0, overtaking, where, "policy"),
    ]


def torn_blocks(running: list[Sequence], shared: set[int]) -> set[int]:
    """The `shared` blocks which are no page with the same tokens of each owner, computed to its
    end.
    """
    content: dict[int, tuple[int, ...] | None] = {}
    torn = set()
    for sequence in running:
        pages = dict(enumerate(sequence.blocks))
        for block in (block for block in _blocks_of(sequence) if block in shared):
            end = next((page + 1 for page, owned in pages.items() if owned == block), 0) * PAGE_SIZE
            tokens = (
                tuple(sequence.tokens[:end]) if 0 < end <= sequence.num_computed_tokens else None
            )
            if block in content and (tokens is None or content[block] != tokens):
                torn.add(block)
            content[block] = tokens
    return torn


def _blocks_of(sequence: Sequence) -> list[int]:
    blocks = [*sequence.blocks, *sequence.window_blocks[sequence.num_evicted_pages :]]
    return blocks if sequence.state_block is None else [*blocks, sequence.state_block]
