"""A device for vLLM's connectors on a CPU: streams, events and copies by address, run in a seeded order.

vLLM calls these instead of torch.cuda's streams and events, the driver's batched copy, and the CUDA extension's
`swap_blocks_batch`. Nothing else of a connector is replaced.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import queue
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from vllm import _custom_ops
from vllm.platforms import current_platform
from vllm.v1.kv_offload.cpu import gpu_worker, spec
from vllm.v1.simple_kv_offload import copy_backend, cuda_mem_ops, worker

from harness.memory.moves import streams

PAGE, NUM_LANES = 4096, 3


class Device:
    """The streams of one run, and the caches that it knows by address."""

    def __init__(self, seed: int, swapped: tuple[str, str] | None = None) -> None:
        self.streams = streams.Streams(seed, swapped)
        self.caches: dict[str, Tensor] = {}
        self._names: dict[int, str] = {}
        self._numbers = itertools.count(1)
        self._current = ["compute"]
        self._copies = itertools.count()

    def spans(self, address: int, num_bytes: int) -> Iterator[streams.Span]:
        """Bytes at an address as spans: blocks of a known cache, and pages of any other memory."""
        name, base, stride = "host", 0, PAGE
        for known, cache in self.caches.items():
            if cache.data_ptr() <= address < cache.data_ptr() + cache.nbytes:
                name, base, stride = known, cache.data_ptr(), cache.nbytes // len(cache)
        start, end = address - base, address - base + num_bytes
        for row in range(start // stride, -(-end // stride)):
            yield name, row, max(start - row * stride, 0), min(end - row * stride, stride)

    def copy(self, stream: str, sources: Iterable[int], targets: Iterable[int], sizes: Iterable[int]) -> None:
        """Queue copies of bytes by address, as one launch."""
        parts = [(int(s), int(t), int(n)) for s, t, n in zip(sources, targets, sizes, strict=True)]

        def run() -> None:
            for source, target, size in parts:
                ctypes.memmove(target, source, size)

        reads = [span for source, _, size in parts for span in self.spans(source, size)]
        writes = [span for _, target, size in parts for span in self.spans(target, size)]
        self.streams.launch(stream, f"copy {next(self._copies)} on {stream}", run, reads, writes)

    def send(self, name: str, parts: Sequence[tuple[int, int, int]], fails: bool) -> list[streams.Event]:
        """Queue pieces (source, target, bytes) of a transfer on several lanes, so that they land in any order.

        A transfer that `fails` sends its first half. Returns an event behind each lane.
        """
        lanes = [f"{name}.{lane}" for lane in range(NUM_LANES)]
        for place, (source, target, size) in enumerate(parts[: len(parts) // 2] if fails else parts):
            self.copy(lanes[place % NUM_LANES], [source], [target], [size])
        return [self.streams.record(lane) for lane in lanes]

    @property
    def current(self) -> str:
        """The stream that launches go to."""
        return self._current[-1]

    def stream(self, *args: Any, **options: Any) -> Stream:
        """A new stream, or the context manager of `torch.cuda.stream` does not need one."""
        number = next(self._numbers)
        self._names[number] = f"stream {number}"
        return Stream(self, self._names[number], number)

    def current_stream(self, *args: Any) -> Stream:
        """The stream that launches go to, as vLLM asks for it."""
        return Stream(self, self.current, 0)

    @contextlib.contextmanager
    def within(self, stream: Stream) -> Iterator[None]:
        """Launch on `stream`, as `torch.cuda.stream` does."""
        self._current.append(stream.name)
        yield
        self._current.pop()

    def swap_blocks_batch(self, sources: Tensor, targets: Tensor, sizes: Tensor, **options: Any) -> None:
        """The copy of the CUDA extension: addresses [n] and sizes [n], int64."""
        self.copy(self.current, *(values.tolist() for values in (sources, targets, sizes)))

    def memcpy_batch(self, targets: int, sources: int, sizes: int, count: int, *more: Any) -> int:
        """The driver's batched copy; its arguments are addresses of arrays, the last one is the stream."""
        lists = [(ctypes.c_uint64 * count).from_address(int(array)) for array in (sources, targets, sizes)]
        self.copy(self._names[int(more[-1])], *lists)
        return 0


class Stream:
    """A stream as vLLM uses it."""

    def __init__(self, device: Device, name: str, number: int) -> None:
        self._device, self.name, self.cuda_stream = device, name, number

    def wait_event(self, event: Event) -> None:
        """Order later launches behind an event."""
        if event.recorded is not None:
            self._device.streams.wait(self.name, event.recorded)

    def wait_stream(self, other: Stream) -> None:
        """Order later launches behind another stream."""
        self._device.streams.wait(self.name, self._device.streams.record(other.name))

    def synchronize(self) -> None:
        """Wait on the host."""
        self._device.streams.synchronize(self._device.streams.record(self.name))


class Event:
    """An event as vLLM uses it."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.recorded: streams.Event | None = None

    def record(self, stream: Stream | None = None) -> None:
        """Put the event behind what was launched."""
        self.recorded = self._device.streams.record(stream.name if stream else self._device.current)

    def query(self) -> bool:
        """Whether it has happened."""
        return self.recorded is None or self._device.streams.is_done(self.recorded)

    def synchronize(self) -> None:
        """Wait on the host."""
        if self.recorded is not None:
            self._device.streams.synchronize(self.recorded)

    def wait(self, stream: Stream | None = None) -> None:
        """Order later launches of a stream behind it."""
        (stream or self._device.current_stream()).wait_event(self)

    def elapsed_time(self, other: Event) -> float:
        """Milliseconds: none are measured."""
        return 1.0


class InlineThread:
    """A thread that copies what a queue brings: here its loop runs as soon as something is put into the queue."""

    def __init__(self, target: Any, args: tuple[Any, ...], **options: Any) -> None:
        self._target, self._args = target, args

    def start(self) -> None:
        """Run the loop for each item, in the thread that puts it."""
        target, (source, *rest) = self._target, self._args

        def put(item: Any) -> None:
            if item is not None:
                items: queue.SimpleQueue[Any] = queue.SimpleQueue()
                items.put(item)
                items.put(None)
                target(items, *rest)

        source.put = put

    def join(self, timeout: float | None = None) -> None:
        """Nothing runs beside the caller."""


class OwnQueue:
    """A queue whose `put` the thread replaces."""


def _driver_copy(device: Device) -> tuple[str, Any]:
    """The variable that holds the driver's copy, and the one in its place. Since 0.33.0 it is a pair."""
    if hasattr(cuda_mem_ops, "_batch_memcpy_fn"):
        return "_batch_memcpy_fn", device.memcpy_batch
    return "_batch_memcpy", (device.memcpy_batch, 1)


@contextlib.contextmanager
def in_place(device: Device) -> Iterator[None]:
    """Let vLLM use `device` for the length of the block."""
    stream = mock.Mock(side_effect=device.stream)
    stream.priority_range = lambda: (0, -1)
    event = lambda *args, **options: Event(device)  # noqa: E731
    threads = mock.Mock(wraps=threading, Thread=InlineThread)
    queues = mock.Mock(wraps=queue, SimpleQueue=OwnQueue)
    shared: dict[str, Any] = {"stream": device.within, "current_stream": device.current_stream}
    patches: list[Any] = [
        mock.patch.multiple(torch.cuda, Stream=stream, Event=event, **shared),
        mock.patch.object(torch, "Event", event),
        mock.patch.object(torch.accelerator, "current_device_index", lambda: 0),
        mock.patch.multiple(copy_backend, threading=threads, queue=queues),
        mock.patch.object(cuda_mem_ops, *_driver_copy(device)),
        mock.patch.object(_custom_ops, "swap_blocks_batch", device.swap_blocks_batch),
    ]
    for module, name in itertools.product((worker, gpu_worker), ("PIN_MEMORY", "is_pin_memory_available")):
        if hasattr(module, name):
            patches.append(mock.patch.object(module, name, False if name.isupper() else lambda: False))
    if hasattr(spec, "_all_workers_barrier"):
        patches.append(mock.patch.object(spec, "_all_workers_barrier", lambda: None))
    shared |= {"Stream": device.stream, "set_device": lambda *args: None, "is_cuda_alike": lambda: True}
    patches.append(mock.patch.multiple(current_platform, create=True, **shared))
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield
