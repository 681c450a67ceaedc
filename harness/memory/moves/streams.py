"""Streams and events of a GPU, simulated on a CPU, with the order of all accesses.

The host launches operations on streams. An operation runs later, when a seed chooses its stream.
Within a stream the order is kept. Between streams only an event orders, and the host is ordered
only with what it waited for. Each operation has a vector clock, so that two accesses without an
order are found even if this run was lucky.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

Clock = dict[str, int]
HOST = "host"
"""The stream of what the host does itself."""
Span = tuple[str, int, int, int]
"""Bytes of a buffer: its name, the row (a block), the first byte in the row, and the byte behind
the last.
"""


@dataclass(slots=True)
class Operation:
    """A launch:

    `number` counts the launches of all streams, `place` the launches of its stream, from 1 on.
    """

    name: str
    stream: str
    number: int
    place: int
    clock: Clock
    run: Callable[[], object] | None
    waits: tuple[Event, ...]
    writes: tuple[Span, ...] = ()
    is_done: bool = False

    def is_before(self, other: Operation) -> bool:
        # A clock says how many launches of each stream are known to have ended before an operation.
        return other.clock.get(self.stream, 0) >= self.place


@dataclass(frozen=True, slots=True)
class Event:
    """A point in a stream: all that was launched on it before."""

    last: Operation | None
    clock: Clock


class Launch(NamedTuple):
    """An operation by its name and its stream."""

    name: str
    stream: str

    @property
    def title(self) -> str:
        return title_of(self.name)


@dataclass(frozen=True, slots=True)
class Race:
    """Two accesses to the same bytes, one of them a write, that no event orders."""

    first: Launch
    second: Launch
    span: Span
    how: str


@dataclass(slots=True)
class Streams:
    """All streams of one run. The seed chooses the order.

    With `swapped` (earlier, later), operations with the title `later` are held back until one with
    the title `earlier` has run, and are then chosen first.
    """

    seed: int = 0
    swapped: tuple[str, str] | None = None
    races: list[Race] = field(default_factory=list)
    num_compared: int = 0
    num_launched: int = 0
    _queues: dict[str, deque[Operation]] = field(default_factory=dict)
    _clocks: dict[str, Clock] = field(default_factory=dict)
    _waits: dict[str, list[Event]] = field(default_factory=dict)
    _host: Clock = field(default_factory=dict)
    _accesses: dict[tuple[str, int], list[tuple[int, int, bool, Operation]]] = field(
        default_factory=dict
    )
    _written: dict[tuple[str, int], list[tuple[int, int, Operation]]] = field(default_factory=dict)
    _ran: set[str] = field(default_factory=set)
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def launch(
        self,
        stream: str,
        name: str,
        run: Callable[[], object] | None = None,
        reads: Iterable[Span] = (),
        writes: Iterable[Span] = (),
    ) -> Operation:
        """Queue an operation behind all others of `stream`.

        `reads` and `writes` are the bytes that it touches.
        """
        # The host launched it, so it is ordered after all that the host has waited for.
        clock = _joined(self._clocks.get(stream, {}), self._host)
        place = clock[stream] = self._clocks.get(stream, {}).get(stream, 0) + 1
        waits = tuple(self._waits.pop(stream, ()))
        written = tuple(writes)
        operation = Operation(name, stream, self.num_launched, place, clock, run, waits, written)
        self.num_launched += 1
        self._clocks[stream] = clock
        self._queues.setdefault(stream, deque()).append(operation)
        for spans, is_write in ((reads, False), (written, True)):
            for span in spans:
                self._note(span, is_write, operation)
        return operation

    def touch(self, name: str, writes: Iterable[Span]) -> None:
        """The host writes memory itself, at once: before all that it launches later, and after what
        it waited for.
        """
        operation = self.launch(HOST, name, writes=writes)
        # The host does it now: there is nothing to run later.
        self._queues[HOST].clear()
        operation.is_done = True
        self._host = _joined(self._host, operation.clock)

    def record(self, stream: str) -> Event:
        """An event behind everything that was launched on `stream` so far, and behind the events
        that it waits for.
        """
        if self._waits.get(stream):
            # An event behind waits needs an operation that can be done.
            self.launch(stream, "wait")
        queue = self._queues.get(stream)
        last = queue[-1] if queue else None
        return Event(last, dict(self._clocks.get(stream, {})))

    @staticmethod
    def nothing() -> Event:
        """The event before everything: it has happened, and orders nothing."""
        return Event(None, {})

    def wait(self, stream: str, event: Event) -> None:
        """Operations launched on `stream` from now on run after `event`."""
        mine = self._clocks.setdefault(stream, {})
        self._clocks[stream] = _joined(mine, event.clock) | {stream: mine.get(stream, 0)}
        self._waits.setdefault(stream, []).append(event)

    def is_done(self, event: Event) -> bool:
        """Whether `event` has happened.

        The host is then ordered after it, as by a poll that returns true.
        """
        done = event.last is None or event.last.is_done
        if done:
            self._host = _joined(self._host, event.clock)
        return done

    def synchronize(self, event: Event) -> None:
        """Run operations until `event` has happened. Raises RuntimeError if it never can."""
        while not self.is_done(event):
            self._run_one()

    def progress(self, most: int) -> None:
        """Let time pass: run up to `most` operations, as the seed chooses."""
        for _ in range(self._random.randint(0, most)):
            if not any(self._queues.values()):
                return
            self._run_one()

    def finish(self) -> None:
        """Run all that is queued. The host waits for it."""
        while any(self._queues.values()):
            self._run_one()
        for clock in self._clocks.values():
            self._host = _joined(self._host, clock)

    def last_writer(self, buffer: str, row: int, byte: int) -> Operation | None:
        """The operation that wrote a byte last; None if none has."""
        written = reversed(self._written.get((buffer, row), []))
        return next((operation for start, end, operation in written if start <= byte < end), None)

    def drop(self, stream: str, operations: Collection[Operation]) -> None:
        """Remove operations that have not run, as a cancelled transfer does.

        Their place in the order stays.
        """
        queue = self._queues.get(stream, deque())
        for operation in queue:
            if any(operation is one for one in operations):
                # It stays in the queue: later operations are still ordered behind it.
                operation.run = None
                operation.writes = ()

    def _run_one(self) -> None:
        first = [queue[0] for queue in self._queues.values() if queue]
        ready = [
            one
            for one in first
            if all(event.last is None or event.last.is_done for event in one.waits)
        ]
        if not ready:
            raise RuntimeError("every stream waits for another: the copies can never run")
        # Any stream that can run may run next, as nothing else orders them on a device.
        operation = self._random.choice(self._willing(ready))
        self._queues[operation.stream].popleft()
        if operation.run is not None:
            operation.run()
            self._ran.add(title_of(operation.name))
        operation.is_done = True
        for buffer, row, start, end in operation.writes:
            self._written.setdefault((buffer, row), []).append((start, end, operation))

    def _willing(self, ready: list[Operation]) -> list[Operation]:
        if self.swapped is None:
            return ready
        earlier, later = self.swapped
        is_due = earlier in self._ran
        # If nothing else is ready, the one that is held back has to run, or the run would never
        # end.
        return [
            operation for operation in ready if (title_of(operation.name) == later) == is_due
        ] or ready

    def _note(self, span: Span, is_write: bool, operation: Operation) -> None:
        buffer, row, start, end = span
        known = self._accesses.setdefault((buffer, row), [])
        for first, last, wrote, other in known:
            if first < end and start < last and (wrote or is_write) and other is not operation:
                self.num_compared += 1
                if not other.is_before(operation):
                    how = f"{'write' if wrote else 'read'} and {'write' if is_write else 'read'}"
                    sides = [Launch(one.name, one.stream) for one in (other, operation)]
                    self.races.append(Race(sides[0], sides[1], span, how))
        if is_write:
            # Later accesses that are ordered after this one are ordered after those, too.
            known[:] = [
                one
                for one in known
                if not (start <= one[0] and one[1] <= end and one[3].is_before(operation))
            ]
        known.append((start, end, is_write, operation))


def orders_to_try(races: Iterable[Race]) -> Iterator[tuple[str, str]]:
    """Titles (earlier, later) of operations without an order: each race turned round, then as
    launched.

    The host cannot be held back.
    """
    pairs = dict.fromkeys(
        (race.first.title, race.second.title) for race in races if race.second.stream != HOST
    )
    yield from (pair[::-1] for pair in pairs)
    yield from pairs


def title_of(name: str) -> str:
    return name.partition(",")[0]


def _joined(one: Clock, other: Clock) -> Clock:
    return one | {stream: max(place, one.get(stream, 0)) for stream, place in other.items()}
