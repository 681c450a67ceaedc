"""Oracles of caches that are moved.

`landed`: every byte that a step reads after a move is the one that the logical token needs there, which its sentinel
names. What was not sent is not read, and memory that no move may touch is as it was.

`ordered`: an event orders each two accesses to the same bytes if one of them is a write. A schedule that happens to run
them in the right order proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.core.cause_codes import Code
from harness.core.records import Finding
from harness.judge.run_records import Evidence, Judgement, Moved

_KINDS = {
    "move.unsent": "a step reads memory that nothing was moved to",
    "move.foreign": "a step reads bytes of another owner",
    "move.late": "a step reads bytes that a former owner's copy wrote",
}


def landed(evidence: Evidence) -> Judgement:
    """Look at every byte that a step of every schedule read."""
    return Judgement.of((moved.num_bytes, _misplaced(moved)) for run in evidence.runs for moved in run.moved)


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
    return Judgement.of((moved.num_pairs, _unordered(moved)) for run in evidence.runs for moved in run.moved)


def _unordered(moved: Moved) -> Iterator[Finding]:
    for race in moved.races:
        buffer, row, start, end = race.span
        yield Finding(
            oracle="ordered",
            site=moved.site,
            tensor=buffer,
            where=f"block {row}, bytes {start} to {end - 1}" if end else "",
            cause=f"{Code.UNORDERED}: {race.how}",
            message=f"no event orders a {race.how} of the same bytes: {race.first.name} on stream {race.first.stream}, "
            f"and {race.second.name} on stream {race.second.stream} ({moved.order})",
        )
