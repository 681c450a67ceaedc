"""What a schedule of moves of a cache showed.

`landed`: every byte that a step reads after a move of a cache is the one that the logical token
needs there, which its sentinel names. What was not sent is not read, and memory that no move may
touch is as it was.

`ordered`: an event orders each two accesses to the same bytes if one of them is a write. A schedule
that happens to run them in the right order proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.core.cause_codes import Code
from harness.core.findings import Finding
from harness.core.oracles import OracleSpec
from harness.evidence.records import Evidence, Judgement

if TYPE_CHECKING:
    from harness.memory.moves.checks import Landed, Misplaced
    from harness.memory.moves.streams import Race, Streams

Operation = tuple[str, str]
"""An operation: its name, and the stream that it runs on."""


@dataclass(slots=True)
class Moved:
    """What one schedule of a case showed: it moves its cache, or delays streams.

    `num_bytes` were read, `num_pairs` of accesses compared. `order` says how the schedule was made.
    Races name `site`.
    """

    num_bytes: int
    num_pairs: int
    misplaced: list[Misplaced]
    races: list[Race]
    order: str = ""
    site: str | None = "move.late"

    @classmethod
    def of(cls, landed: Landed, streams: Streams, order: str) -> Moved:
        """What a schedule showed: it ran on `streams`, its reads were compared in `landed`."""
        return cls(landed.num_bytes, streams.num_compared, landed.misplaced, streams.races, order)

    @classmethod
    def of_copies(
        cls,
        num_copies: int,
        changed: Sequence[tuple[Operation, Operation]],
        memory: str,
        order: str,
    ) -> Moved:
        """What a watch over copies from `memory` found: how many it saw, and which were too late.

        `changed` has a pair for each source that changed before its copy had ended: the copy and
        the change, each by its name and its stream.
        """
        from harness.memory.moves.streams import Launch, Race

        races = [
            Race(Launch(*copy), Launch(*change), (memory, 0, 0, 0), "read and write")
            for copy, change in changed
        ]
        return cls(0, num_copies, [], races, order, site=None)


_KINDS = {
    "move.unsent": "a step reads memory that nothing was moved to",
    "move.foreign": "a step reads bytes of another owner",
    "move.late": "a step reads bytes that a former owner's copy wrote",
}


def landed(evidence: Evidence) -> Judgement:
    """Look at every byte that a step of every schedule read."""
    return Judgement.of((moved.num_bytes, _misplaced(moved)) for moved, _ in evidence.all(Moved))


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
    return Judgement.of((moved.num_pairs, _unordered(moved)) for moved, _ in evidence.all(Moved))


def _unordered(moved: Moved) -> Iterator[Finding]:
    for race in moved.races:
        buffer, row, start, end = race.span
        yield Finding(
            oracle="ordered",
            site=moved.site,
            tensor=buffer,
            # A watch over copies knows no bytes.
            where=f"block {row}, bytes {start} to {end - 1}" if end else "",
            cause=f"{Code.UNORDERED}: {race.how}",
            message=(
                f"no event orders a {race.how} of the same bytes: {race.first.name} on stream"
                f" {race.first.stream}, and {race.second.name} on stream {race.second.stream}"
                f" ({moved.order})"
            ),
        )


ORACLES = (
    OracleSpec(
        "landed",
        "after a move every byte is the one that its token needs, and no other changed",
        landed,
        needs="moves",
        rank=180,
    ),
    OracleSpec(
        "ordered",
        "of two accesses to the same bytes, one a write, an event orders which is first",
        ordered,
        needs="moves",
        rank=190,
    ),
)
