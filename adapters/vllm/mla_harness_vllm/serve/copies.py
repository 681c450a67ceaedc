"""Copies from pinned memory in a vLLM worker: their streams are delayed, and their sources watched
until they ended.

A source that changes before the event behind its copy has happened is a race. The copy itself reads
a private copy of its source, so that a race is told and does no harm: rows read too late would end
the process before it reports. Watched are `copy_`, `to` and `cuda` with `non_blocking`, outside of
captures: the input batch, metadata, and what an offloading stream copies with torch. Not watched
are batched copies by the driver, and kernels that read host memory.
"""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from mla_harness_vllm.serve.writes import FILLED

METHODS = ("copy_", "to", "cuda")
MOST_BYTES = 1 << 20
"""The largest source that is watched: weights are larger, inputs of a step are not."""
DELAYED = 1 / 32
"""The share of copies that the seed delays."""
CYCLES = (20_000_000, 200_000_000)
"""How long the stream is held in front of a delayed copy: longer than the host needs for a step."""


class CopyEvent(Protocol):
    """A point in a stream."""

    def query(self) -> bool: ...


class Flight(NamedTuple):
    """A copy that was queued: its source, the content that it reads, the event behind it, and its
    line.
    """

    source: Tensor
    content: Tensor
    event: CopyEvent
    line: str


class WatchedCopies:
    """The copies of one process that have not ended, and the races that were seen, as (copy,
    change) lines.
    """

    def __init__(
        self,
        seed: int,
        record: Callable[[], CopyEvent],
        hold: Callable[[int], object],
        pin: Callable[[Tensor], Tensor],
    ) -> None:
        self.races: set[tuple[str, str]] = set()
        self._random = random.Random(seed)
        self._record = record
        self._hold = hold
        self._pin = pin
        self._flights: list[Flight] = []

    def check(self, line: str) -> None:
        """Look at each source that may still be read. What changed, changed before `line`."""
        flights = self._flights
        self._flights = []
        for flight in flights:
            # Bytes are compared, since a NaN equals nothing.
            changed = not torch.equal(_bytes(flight.source), _bytes(flight.content))
            # The content comes first: after its event a source may change.
            if flight.event.query():
                continue
            if not changed:
                self._flights.append(flight)
            elif (flight.line, line) not in self.races:
                self.races.add((flight.line, line))
                print(
                    f"mla-harness: the copy at {flight.line} was queued when its source changed",
                    file=sys.stderr,
                )

    def watched(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        """The method `name` of tensors of any shape, with its copies watched."""

        @functools.wraps(original)
        def method(self_: Tensor, *args: Any, **kwargs: Any) -> Any:
            operands = [self_, *args, *([kwargs.pop("src")] if "src" in kwargs else [])]
            place = (
                1 if name == "copy_" else 0
            )  # copy_ reads its argument, the others what they are called on.
            source = operands[place]
            is_async = kwargs.get("non_blocking") is True or any(one is True for one in args)
            if torch.compiler.is_compiling() or not is_async or not is_source(source):
                return original(*operands, **kwargs)
            line = caller(sys._getframe(1))
            self.check(line)
            # From pinned memory, or the driver would copy at once and the order of events would be
            # gone. It is pinned before the stream is held, as new pinned memory waits for the GPU.
            content = operands[place] = self._pin(source.detach().clone())
            # A copy on an idle stream ends at once, and a race would never show. Held back, the
            # copy is still queued when the host prepares the next step.
            if self._random.random() < DELAYED:
                self._hold(self._random.randint(*CYCLES))
            result = original(*operands, **kwargs)
            self._flights.append(Flight(source, content, self._record(), line))
            FILLED.copies += 1
            return result

        return method


def is_source(value: Any) -> bool:
    """Whether a copy from `value`, a tensor of any shape, is watched."""
    return (
        isinstance(value, Tensor)
        and value.device.type == "cpu"
        and 0 < value.nbytes <= MOST_BYTES
        and value.is_contiguous()
        and value.is_pinned()
        and not torch.cuda.is_current_stream_capturing()
    )


def caller(frame: FrameType | None) -> str:
    """The innermost two lines, `file:line in function`, the outer one first: helpers copy for their
    callers.
    """
    lines: list[str] = []
    while frame is not None and len(lines) < 2:
        code = frame.f_code
        lines.append(
            f"{'/'.join(code.co_filename.split('/')[-2:])}:{frame.f_lineno} in {code.co_name}"
        )
        frame = frame.f_back
    return " > ".join(reversed(lines))


def _bytes(tensor: Tensor) -> Tensor:
    """The bytes [n] of a contiguous tensor of any shape."""
    return tensor.detach().view(-1).view(torch.uint8)


def _recorded() -> CopyEvent:
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return event


COPIES: list[WatchedCopies] = []
"""The watch of this process, if it has one."""


def install(seed: str) -> None:
    copies = WatchedCopies(int(seed), _recorded, torch.cuda._sleep, torch.Tensor.pin_memory)
    COPIES.append(copies)
    for name in METHODS:
        setattr(torch.Tensor, name, copies.watched(name, getattr(torch.Tensor, name)))


def races() -> tuple[tuple[str, str], ...]:
    """What was seen in this process so far: the lines of a copy, and of the first copy behind the
    change.
    """
    for copies in COPIES:
        copies.check("the end")
    return tuple(sorted(pair for copies in COPIES for pair in copies.races))
