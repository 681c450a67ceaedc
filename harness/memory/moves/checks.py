"""Compares moved bytes with the owners that the logical tokens need, and names what is there
instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from harness.memory.moves.owners import UNSENT_TOKEN, found_at
from harness.memory.moves.streams import Span


@dataclass(frozen=True, slots=True)
class Misplaced:
    """Bytes of another token than the one that is read there."""

    site: str
    tensor: str
    where: str
    message: str


@dataclass(slots=True)
class Landed:
    """What readers found: the number of bytes, and the wrong ones, one entry for each read."""

    num_bytes: int = 0
    misplaced: list[Misplaced] = field(default_factory=list)

    def compare(
        self,
        found: Tensor,
        wanted: Tensor,
        record: int,
        place: Span,
        reader: str,
        late: Callable[[int], str] | None = None,
    ) -> None:
        """Compare the records found [tokens, shards * `record`] uint8 that `reader` finds at
        `place` with what it needs, wanted [tokens, shards * `record`] uint8.

        `late` returns the operation that wrote a byte of the row last if a former owner launched
        it, else nothing.
        """
        self.num_bytes += found.numel()
        if found.equal(wanted):
            return
        wrong = found != wanted
        token = int(wrong.any(dim=1).nonzero()[0])
        byte = int(wrong[token].nonzero()[0])
        first = byte // record * record
        site, what = named(found[token, first : first + record], byte - first)
        needed = (
            found_at(wanted[token, first : first + record], byte - first) or "the rest of a word"
        )
        buffer, row, start, _ = place
        at = start + token * wanted.shape[1] + byte
        # Bytes of another owner came late if a launch from before the block was given wrote them.
        if site == "move.foreign" and late is not None and (writer := late(at)):
            site = "move.late"
            what = f"{what}, written late by {writer}"
        self.misplaced.append(
            Misplaced(
                site,
                buffer,
                f"block {row}, byte {at}",
                f"{reader} reads {what}, and needs {needed}; {int(wrong.sum())} of {wrong.numel()}"
                " bytes are wrong",
            )
        )

    def untouched(self, name: str, before: Tensor, after: Tensor) -> None:
        """Compare memory before [rows, n] and after [rows, n], uint8, that no move may write."""
        self.num_bytes += after.numel()
        if not after.equal(before):
            row, byte = (int(place) for place in (after != before).nonzero()[0])
            message = (
                f"{name} has changed in row {row}, byte {byte}: {named(after[row], byte)[1]} is"
                " there now"
            )
            self.misplaced.append(
                Misplaced("move.foreign", name, f"row {row}, byte {byte}", message)
            )


def named(record: Tensor, byte: int) -> tuple[str, str]:
    """The site of a wrong byte of a record [n] uint8, and its owner in words."""
    owner = found_at(record, byte)
    if owner is None:
        return "move.foreign", f"0x{int(record[byte]):02x} outside of a whole word"
    return ("move.unsent" if owner.token == UNSENT_TOKEN else "move.foreign"), str(owner)
