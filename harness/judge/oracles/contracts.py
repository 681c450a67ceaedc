"""Oracles of contracts between two parts of an engine, which are judged even if no answer suffers.

`address`: a graph reads the same tensor that the engine updates before a replay.

`zeroed`: a block that the scheduler wants zeroed holds zeros when a step first reads it.

`distinct_experts`: the experts of a token are distinct and exist. Expert kernels sort tokens by
expert and rely on both for every row, padding included. A row of -1 is masked by the engine and not
judged.

`conserved`: each request gets its tokens once, and each block is free or owned, in every step and
at the end. Owners, shared pages and places are counted as well. Any engine promises this.

`policy`: who runs next, how much of the budget is used, which graph replays, which page is found in
the cache. Another right engine may choose otherwise, so a scenario that means this engine's policy
names the oracle.

`acceptance`: each draft of a drafter that knows the answers by heart is the token that the target
chooses.

`landed`: every byte that a step reads after a move of a cache is the one that the logical token
needs there, which its sentinel names. What was not sent is not read, and memory that no move may
touch is as it was.

`ordered`: an event orders each two accesses to the same bytes if one of them is a write. A schedule
that happens to run them in the right order proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from harness.core.cause_codes import Code
from harness.core.finding_words import place
from harness.core.records import Finding
from harness.judge.run_records import (
    Binding,
    ChosenExperts,
    Count,
    Evidence,
    Judgement,
    Moved,
    ZeroedBlock,
)


def address(evidence: Evidence) -> Judgement:
    """Compare the two addresses of every binding of every step, in every run."""
    return Judgement.of(
        (1, _other_address(binding, run.pattern))
        for run in evidence.runs
        for binding in run.bindings
    )


def _other_address(binding: Binding, pattern: str) -> Iterator[Finding]:
    if binding.captured_address != binding.current_address:
        yield Finding(
            oracle="address",
            site=binding.site,
            tensor=binding.name,
            where=f"step {binding.step}",
            bits=f"captured 0x{binding.captured_address:x}, updated 0x{binding.current_address:x}",
            cause=Code.OTHER_ADDRESS,
            message=(
                f"the graph reads {binding.name} where it was captured, but the engine updates"
                f" another tensor (pattern {pattern})"
            ),
        )


def zeroed(evidence: Evidence) -> Judgement:
    """Look at every listed block of every step of every run."""
    return Judgement.of(
        (block.num_bytes, _dirty(block, run.pattern))
        for run in evidence.runs
        for block in run.zeroed
    )


def _dirty(block: ZeroedBlock, pattern: str) -> Iterator[Finding]:
    if block.num_dirty:
        yield Finding(
            oracle="zeroed",
            site="kv.new",
            tensor="new blocks",
            where=f"block {block.block}",
            cause=Code.DIRTY,
            message=(
                f"a block that the scheduler wants zeroed holds old data: block {block.block} in"
                f" step {block.step}, {block.num_dirty} of {block.num_bytes} bytes (pattern"
                f" {pattern})"
            ),
        )


def _kept(evidence: Evidence, oracle: str) -> Judgement:
    counts = (
        (count, run.pattern)
        for run in evidence.runs
        for count in run.counts
        if count.oracle == oracle
    )
    return Judgement.of((1, _miscounted(count, pattern)) for count, pattern in counts)


conserved, policy, acceptance = (
    partial(_kept, oracle=name) for name in ("conserved", "policy", "acceptance")
)

_POLICY = {
    "conserved": "",
    "policy": " by the policy that the scenario declares; another engine may choose so",
    "acceptance": ": the drafter knows the answers by heart, so a refused draft is an error",
}


def _miscounted(count: Count, pattern: str) -> Iterator[Finding]:
    if count.found != count.expected:
        yield Finding(
            oracle=count.oracle,
            tensor=count.name,
            where=count.where,
            cause=Code.MISCOUNTED,
            message=(
                f"{count.name}: {count.found}, not {count.expected}{_POLICY[count.oracle]} (pattern"
                f" {pattern})"
            ),
        )


def distinct_experts(evidence: Evidence) -> Judgement:
    """Look at the ids of every routed row of every run."""
    return Judgement.of(
        (chosen.ids.numel(), _wrong_experts(chosen, run.pattern))
        for run in evidence.runs
        for chosen in run.chosen
    )


def _wrong_experts(chosen: ChosenExperts, pattern: str) -> Iterator[Finding]:
    rising = chosen.ids.sort(dim=1).values
    routed = ~(rising == -1).all(dim=1)
    repeated = (rising[:, 1:] == rising[:, :-1]).any(dim=1) & routed
    unknown = ((rising < 0) | (rising >= chosen.num_experts)).any(dim=1) & routed
    kinds = (
        (Code.REPEATED_EXPERT, repeated, "one expert more than once"),
        (Code.UNKNOWN_EXPERT, unknown, "an expert that does not exist"),
    )
    for cause, wrong, what in kinds:
        rows = torch.nonzero(wrong).flatten().tolist()
        if rows:
            yield Finding(
                oracle="distinct_experts",
                tensor=chosen.name,
                where=place("routed token", tuple(rows), (rows[0], 0)),
                cause=cause,
                message=(
                    f"{len(rows)} of {len(rising)} tokens are given {what}: the first has"
                    f" {chosen.ids[rows[0]].tolist()} of {chosen.num_experts} experts (pattern"
                    f" {pattern})"
                ),
            )


_KINDS = {
    "move.unsent": "a step reads memory that nothing was moved to",
    "move.foreign": "a step reads bytes of another owner",
    "move.late": "a step reads bytes that a former owner's copy wrote",
}


def landed(evidence: Evidence) -> Judgement:
    """Look at every byte that a step of every schedule read."""
    return Judgement.of(
        (moved.num_bytes, _misplaced(moved)) for run in evidence.runs for moved in run.moved
    )


def _misplaced(moved: Moved) -> Iterator[Finding]:
    for wrong in moved.misplaced:
        yield Finding(
            oracle="landed",
            site=wrong.site,
            tensor=wrong.tensor,
            where=wrong.where,
            cause=Code.MISPLACED,
            message=f"{_KINDS[wrong.site]}: {wrong.message} ({moved.order})",
        )


def ordered(evidence: Evidence) -> Judgement:
    """Look at every two accesses to the same bytes in every schedule."""
    return Judgement.of(
        (moved.num_pairs, _unordered(moved)) for run in evidence.runs for moved in run.moved
    )


def _unordered(moved: Moved) -> Iterator[Finding]:
    for race in moved.races:
        buffer, row, start, end = race.span
        yield Finding(
            oracle="ordered",
            site=moved.site,
            tensor=buffer,
            where=f"block {row}, bytes {start} to {end - 1}" if end else "",
            cause=f"{Code.UNORDERED}: {race.how}",
            message=(
                f"no event orders a {race.how} of the same bytes: {race.first.name} on stream"
                f" {race.first.stream}, and {race.second.name} on stream {race.second.stream}"
                f" ({moved.order})"
            ),
        )
