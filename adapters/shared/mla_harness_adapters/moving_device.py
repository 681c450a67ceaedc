"""A device for an engine's connectors on a CPU: streams, events and copies by address, run in a
seeded order.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor

from harness.api import Streams

PAGE = 4096
NUM_LANES = 3
Span = tuple[str, int, int, int]
"""Bytes of a buffer: its name, the row (a block), the first byte in the row, and the byte behind
the last.
"""


class Device:
    """The streams of one run, and the caches that it knows by address."""

    def __init__(self, seed: int, swapped: tuple[str, str] | None = None) -> None:
        self.streams = Streams(seed, swapped)
        self.caches: dict[str, Tensor] = {}
        self._names: dict[int, str] = {}
        self._numbers = itertools.count(1)
        self._current = ["compute"]
        self._copies = itertools.count()

    def spans(self, address: int, num_bytes: int) -> Iterator[Span]:
        """Bytes at an address as spans: blocks of a known cache, and pages of any other memory."""
        name = "host"
        base = 0
        stride = PAGE
        # The driver knows addresses alone. Blocks of a cache are named, so that a race says which
        # block of which layer was read too early.
        for known, cache in self.caches.items():
            if cache.data_ptr() <= address < cache.data_ptr() + cache.nbytes:
                name = known
                base = cache.data_ptr()
                stride = cache.nbytes // len(cache)
        start = address - base
        end = address - base + num_bytes
        for row in range(start // stride, -(-end // stride)):
            yield name, row, max(start - row * stride, 0), min(end - row * stride, stride)

    def copy(
        self, stream: str, sources: Iterable[int], targets: Iterable[int], sizes: Iterable[int]
    ) -> None:
        """Queue copies of bytes by address, as one launch."""
        parts = [(int(s), int(t), int(n)) for s, t, n in zip(sources, targets, sizes, strict=True)]

        def run() -> None:
            for source, target, size in parts:
                ctypes.memmove(target, source, size)

        # Streams check the order by what each launch reads and writes.
        reads = [span for source, _, size in parts for span in self.spans(source, size)]
        writes = [span for _, target, size in parts for span in self.spans(target, size)]
        self.streams.launch(stream, f"copy {next(self._copies)} on {stream}", run, reads, writes)

    def send(
        self, name: str, parts: Sequence[tuple[int, int, int]], fails: bool
    ) -> list[DeviceEvent]:
        """Queue pieces (source, target, bytes) of a transfer on several lanes, so that they land in
        any order.

        A transfer that `fails` sends its first half. Returns an event behind each lane.
        """
        # Network transfers use several queues, and no order holds between them. An engine that
        # waits for the last piece only has not waited for the others.
        lanes = [f"{name}.{lane}" for lane in range(NUM_LANES)]
        for place, (source, target, size) in enumerate(
            parts[: len(parts) // 2] if fails else parts
        ):
            self.copy(lanes[place % NUM_LANES], [source], [target], [size])
        return [self.record(lane) for lane in lanes]

    def record(self, stream: str) -> DeviceEvent:
        """An event behind everything that was launched on a stream so far."""
        event = DeviceEvent(self)
        event.record_on(stream)
        return event

    @property
    def current(self) -> str:
        """The stream that launches go to."""
        return self._current[-1]

    def stream(self, *args: Any, **options: Any) -> Stream:
        number = next(self._numbers)
        # Engines pass streams to the driver as integers, so a number must lead back to its stream.
        self._names[number] = f"stream {number}"
        return Stream(self, self._names[number], number)

    def current_stream(self, *args: Any) -> Stream:
        return Stream(self, self.current, 0)

    @contextlib.contextmanager
    def within(self, stream: Stream) -> Iterator[None]:
        """Launch on `stream`, as `torch.cuda.stream` does."""
        self._current.append(stream.name)
        yield
        self._current.pop()

    def memcpy_batch(self, targets: int, sources: int, sizes: int, count: int, *more: Any) -> int:
        """The driver's batched copy; its arguments are addresses of arrays, the last one is the
        stream.
        """
        lists = [
            (ctypes.c_uint64 * count).from_address(int(array))
            for array in (sources, targets, sizes)
        ]
        self.copy(self._names[int(more[-1])], *lists)
        return 0


class Stream:
    """A stream as an engine uses it."""

    def __init__(self, device: Device, name: str, number: int) -> None:
        self._device = device
        self.name = name
        self.cuda_stream = number

    def wait_event(self, event: DeviceEvent) -> None:
        event.hold_back(self.name)

    def wait_stream(self, other: Stream) -> None:
        self._device.streams.wait(self.name, self._device.streams.record(other.name))

    def synchronize(self) -> None:
        self._device.streams.synchronize(self._device.streams.record(self.name))


class DeviceEvent:
    """An event as an engine uses it."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._recorded = self._device.streams.nothing()

    def record(self, stream: Stream | None = None) -> None:
        self.record_on(stream.name if stream else self._device.current)

    def record_on(self, stream: str) -> None:
        """Record behind everything that was launched on the stream of this name so far."""
        self._recorded = self._device.streams.record(stream)

    def query(self) -> bool:
        return self._device.streams.is_done(self._recorded)

    def synchronize(self) -> None:
        self._device.streams.synchronize(self._recorded)

    def hold_back(self, stream: str) -> None:
        """Operations launched on the stream of this name from now on run after this event."""
        self._device.streams.wait(stream, self._recorded)

    def wait(self, stream: Stream | None = None) -> None:
        (stream or self._device.current_stream()).wait_event(self)

    def elapsed_time(self, other: DeviceEvent) -> float:
        """Milliseconds: none are measured."""
        return 1.0
