"""A transport between two memories: it delays, reorders, fails and aborts as a seed says."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from harness.memory.moves.streams import Event, Operation, Span, Streams

Status = Literal["busy", "done", "failed"]
NUM_LANES = 3
"""Queues of a transfer. Its pieces go through all of them, so they land in any order."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes to copy, views of one shape on the two memories, and their places in the buffers."""

    source: Tensor
    target: Tensor
    reads: tuple[Span, ...]
    writes: tuple[Span, ...]

    def copy(self) -> None:
        """Copy the bytes, as they are when this runs."""
        self.target.copy_(self.source)


@dataclass(slots=True)
class Transfer:
    """Pieces on their way. Without its last pieces a transfer has failed."""

    name: str
    pieces: list[tuple[str, Operation]]
    ends: tuple[Event, ...]
    has_failed: bool


@dataclass(slots=True)
class Transport:
    """Sends pieces through lanes, which no event orders.

    Transfers with numbers in `failing` lose their second half.
    """

    streams: Streams
    failing: Collection[int] = ()
    name: str = "transport"
    num_transfers: int = 0
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.streams.seed)

    def send(self, name: str, pieces: Sequence[Piece], after: Sequence[Event] = ()) -> Transfer:
        """Start to copy `pieces`, each after all events of `after`."""
        fails = self.num_transfers in self.failing
        sent = pieces[: len(pieces) // 2] if fails else pieces
        lanes = [f"{self.name} {self.num_transfers}.{lane}" for lane in range(NUM_LANES)]
        self.num_transfers += 1
        for lane in lanes:
            for event in after:
                self.streams.wait(lane, event)
        launched = []
        for number, piece in enumerate(sent):
            lane = self._random.choice(lanes)
            title = f"{name}, piece {number}"
            launched.append(
                (lane, self.streams.launch(lane, title, piece.copy, piece.reads, piece.writes))
            )
        return Transfer(name, launched, tuple(self.streams.record(lane) for lane in lanes), fails)

    def status(self, transfer: Transfer) -> Status:
        """How far a transfer is. It ends only when no piece of it is on its way."""
        # A list, so that every end is polled: each poll that succeeds orders the host behind its
        # event.
        if not all([self.streams.is_done(event) for event in transfer.ends]):
            return "busy"
        return "failed" if transfer.has_failed else "done"

    def cancel(self, transfer: Transfer) -> None:
        """Take back the pieces that are not copied yet.

        Returns when nothing of the transfer can land any more.
        """
        for lane, operation in transfer.pieces:
            self.streams.drop(lane, (operation,))
        for event in transfer.ends:
            self.streams.synchronize(event)
