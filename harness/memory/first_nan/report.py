"""The report of a table: the op that wrote the first value that is not finite, and the finite values before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from harness.core.records import FirstNan
from harness.memory.first_nan.table import Hit, Slot, Table

__all__ = ["FirstNan", "StepNotes", "describe", "first_of_ranks"]

KEPT_STEPS = 4096
MAX_AFTER = 32
"""The most later hits in a report: enough to reach the next collective."""


@dataclass(slots=True)
class StepNotes:
    """The requests' rows in the latest steps: (request, first row, end)."""

    steps: dict[int, dict[str, list[tuple[str, int, int]]]] = field(default_factory=dict)

    def note(self, step: int, rows: dict[str, list[tuple[str, int, int]]]) -> None:
        """Keep the rows of a step by the kind of a slot's rows."""
        self.steps[step] = rows
        if len(self.steps) > KEPT_STEPS:
            del self.steps[next(iter(self.steps))]

    def request(self, hit: Hit) -> str:
        """The request of the row that was hit; empty if unknown."""
        spans = self.steps.get(hit.step, {}).get(hit.slot.rows, [])
        return next((name for name, start, end in spans if start <= hit.index[0] < end), "")


def describe(table: Table, notes: StepNotes | None = None, rank: int = 0) -> FirstNan | None:
    """The first hit of `table`; None if all watched values were finite. Reads the device."""
    hits = [hit for hit in table.hits() if hit.slot.kind != "beside"]
    if not hits:
        return None
    found = hits[0]
    slot = found.slot
    # Memory beside the call may have been bad in an earlier step, so its first hit proves nothing.
    bad = {slot for slot, step, _ in table.recent()[0] if step == found.step}
    bad |= {hit.slot for hit in hits if hit.step == found.step}
    scanned = table.scanned()
    call = [other for other in scanned if other.call == slot.call and other.op == slot.op and other != slot]
    given = [other for other in call if other.kind != "output"]
    return FirstNan(
        writer=slot.op, tensor=slot.tensor, layer=slot.layer, step=found.step, phase=found.phase, rank=rank,
        request=notes.request(found) if notes else "",
        where=f"row {found.index[0]}, element {found.index[1]}", bits=found.bits, bad=slot.bad,
        is_input=slot.kind == "input",
        finite=tuple(other.tensor for other in given if other not in bad),
        not_finite=tuple(other.tensor for other in given if other in bad),
        before=_before(scanned, slot),
        after=tuple(_name(hit.slot) for hit in hits[1:] if hit.step == found.step)[:MAX_AFTER],
    )  # fmt: skip


def first_of_ranks(reports: Sequence[FirstNan]) -> FirstNan:
    """The report of the rank that wrote first, with the reports of the other ranks. `reports` has one a rank.

    Ranks run the same program, so the earliest step is first. Within a step, a rank is earlier if another rank's first
    writer was hit on it after its own: a NaN travels through the next collective. The lower rank wins a tie. Raises
    ValueError without reports.
    """
    ranked = sorted(reports, key=lambda report: report.rank)
    hit = [report for report in ranked if report.writer]
    earliest = [report for report in hit if report.step == min(other.step or 0 for other in hit)]
    found = max(earliest, key=lambda report: sum(_precedes(report, other) for other in earliest), default=ranked[0])
    others = tuple(_of_rank(report) for report in ranked if report is not found)
    return found.model_copy(update={"num_ranks": len(ranked), "other_ranks": others})


def _precedes(report: FirstNan, other: FirstNan) -> bool:
    """Whether the first writer of another rank was hit on this rank after this rank's own."""
    return f"{other.writer} {other.tensor}" in report.after


def _of_rank(report: FirstNan) -> str:
    statement = report.model_copy(update={"num_ranks": 2}).statement
    return statement if report.writer else f"rank {report.rank}: {statement}"


def _name(slot: Slot) -> str:
    return f"{slot.op} {slot.tensor}"


def _before(scanned: list[Slot], slot: Slot) -> str:
    """The last output that was scanned before the slot that was hit: it was finite."""
    earlier = [s for s in scanned[: scanned.index(slot)] if s.kind == "output" and s.call != slot.call]
    return _name(earlier[-1]) if earlier else ""
