"""What the table says, for people: who wrote the first value that is not finite, and what was still finite before."""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.recorder.table import Hit, Slot, Table
from harness.records import FirstNan

__all__ = ["FirstNan", "StepNotes", "describe"]

KEPT_STEPS = 4096


@dataclass(slots=True)
class StepNotes:
    """Whose rows were in a step: (request, first row, end) in a batch, for the latest steps."""

    steps: dict[int, dict[str, list[tuple[str, int, int]]]] = field(default_factory=dict)

    def note(self, step: int, rows: dict[str, list[tuple[str, int, int]]]) -> None:
        """Keep the rows of a step by the kind of a slot's rows."""
        self.steps[step] = rows
        if len(self.steps) > KEPT_STEPS:
            del self.steps[next(iter(self.steps))]

    def request(self, hit: Hit) -> str:
        """The request whose row was hit; empty when nobody knows."""
        spans = self.steps.get(hit.step, {}).get(hit.slot.rows, [])
        return next((name for name, start, end in spans if start <= hit.index[0] < end), "")


def describe(table: Table, notes: StepNotes | None = None, rank: int = 0) -> FirstNan | None:
    """The first hit of `table`; None when no watched value was anything but finite. Reads the device."""
    hits = [hit for hit in table.hits() if hit.slot.kind != "beside"]
    if not hits:
        return None
    found = hits[0]
    slot = found.slot
    # Memory beside the call may have been bad in an earlier step already, so its first hit does not tell.
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
    )  # fmt: skip


def _before(scanned: list[Slot], slot: Slot) -> str:
    """The output that was scanned last before the slot that was hit: it was finite."""
    earlier = [s for s in scanned[: scanned.index(slot)] if s.kind == "output" and s.call != slot.call]
    return f"{earlier[-1].op} {earlier[-1].tensor}" if earlier else ""
