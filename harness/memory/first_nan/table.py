"""The recorder's memory: the first bad element of each watched tensor, on the device, and the names
of the slots.

All buffers are made once, before any capture: a captured graph keeps writing to them. A slot is one
watched tensor of one op. Its latch keeps the first hit; the ring of events keeps the latest steps.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.library import Library
from torch_poison.patterns import EXPONENT, bits_view, hex_of

from harness.memory.first_nan.latch import DTYPES, EVENT_FIELDS, LATCH_FIELDS, NEVER

# Captures, torch.compile and a CPU's recordings keep an op. It changes the recorder's buffers, so
# none may drop it.
_library = Library("mla_harness", "FRAGMENT")
_library.define(
    "watch(Tensor[] xs, Tensor live, Tensor clock, Tensor(a!) latches, Tensor(b!) first, Tensor(c!)"
    " events, Tensor(d!) count, int[] slots, int[] limits) -> ()"
)


def can_watch(tensor: Tensor) -> bool:
    """Whether there is a scan for tensor [...]: a float type (bfloat16, float16, float32, float64,
    fp8), one dimension and one element at least.
    """
    return tensor.dtype in EXPONENT and tensor.numel() > 0 and tensor.ndim > 0


def rows_of(tensor: Tensor, axis: int | None = 0) -> Tensor:
    """`tensor` [...] of any dtype, such as bfloat16, as [rows, K] with dense rows, a view where it
    can be one.

    `axis` None makes the whole one row.
    """
    tensor = tensor.detach()
    if axis is None:
        return tensor.reshape(1, -1)
    if axis:
        tensor = tensor.movedim(axis, 0)
    flat = tensor.reshape(tensor.shape[0], -1)
    return flat if flat.shape[1] == 1 or flat.stride(1) == 1 else flat.contiguous()


def _watch_cpu(xs: list[Tensor], *rest: Any) -> None:
    """Scan the results of one op, each [rows, K], into its slot.

    Arguments as in the schema of the op.
    """
    *shared, slots, limits = rest
    for x, slot, limit in zip(xs, slots, limits, strict=True):
        _watch_one(x, shared, slot, limit)


def _watch_one(x: Tensor, shared: list[Tensor], slot: int, limit: int) -> None:
    """Note the first bad element of x [rows, K] in its first `live` [1] int32 rows (negative: in
    all rows).

    A bad value is not finite, or with a `limit` >= 0 an integer outside 0 .. limit - 1. `clock` [2]
    int32 is step and phase. `latches` [W, 7] int32, `first` [W] int64 (flat index << 32 | bits),
    `events` [C, 3] int32 and `count` [1] int32 belong to
    :class:`harness.memory.first_nan.table.Table`.
    """
    live, clock, latches, first, events, count = shared
    num_live = int(live[0])
    latch = latches[slot]
    if num_live:
        # Seen with live rows: a slot without them proves nothing about its op.
        latch[6] = 1
    if num_live >= 0:
        x = x[:num_live]
    if limit >= 0:
        bad = (x < 0) | (x >= limit)
    else:
        mask = EXPONENT[x.dtype]
        bad = (bits_view(x) & mask) == mask
    if not bool(bad.any()):
        return
    step, phase = (int(value) for value in clock)
    index = int(bad.flatten().to(torch.uint8).argmax())
    value = x[index // x.shape[1], index % x.shape[1]].reshape(1)
    bits = int((value if limit >= 0 else bits_view(value)).item())
    # There is room for 32 bits of the value; the upper half tells NaN from Inf.
    if x.element_size() == 8 and limit < 0:
        bits >>= 32
    # Steps are stored from 1 on, as 0 means that nothing was found.
    is_first = int(latch[0]) in (0, step + 1)
    if is_first:
        latch[0] = step + 1
        # Index above bits, so that the minimum of many threads is the first element with its value.
        first[slot] = min(int(first[slot]), (index << 32) | (bits & 0xFFFFFFFF))
    if int(latch[1]) == step + 1:
        return
    latch[1] = step + 1
    place = int(count[0])
    count += 1
    events[place % events.shape[0]] = torch.tensor((slot, step, phase), dtype=torch.int32)
    if is_first:
        latch[2:6] = torch.tensor(
            (place, phase, x.shape[1], DTYPES.index(x.dtype)), dtype=torch.int32
        )


def _watch_cuda(*args: Any) -> None:
    from harness.memory.first_nan.triton_scan import scan

    scan(*args)


_library.impl("watch", _watch_cpu, "CPU")
_library.impl("watch", _watch_cuda, "CUDA")
# Tracing computes nothing.
_library.impl("watch", lambda *_: None, "Meta")


Kind = Literal["output", "input", "beside"]
"""`beside` is memory that an op sees and must not depend on. It is reported, but never a hit."""

PHASES = ("forward", "prefill", "decode", "mixed")
MAX_SLOTS = 8192
RING = 1024
BUFFERS = ("latches", "first", "events", "count")
"""The buffers that a scan writes."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One watched tensor: its op, its name, its layer, and the requests of its rows."""

    op: str
    tensor: str
    kind: Kind = "output"
    layer: int | None = None
    call: Hashable = None
    """The same for all tensors of one call of an op."""
    rows: str = ""
    """Its rows in the batch:

    `batch` (all), `prefill` (prompts), `answers` (rows with logits), or empty (unknown).
    """
    limit: int = -1
    """The bound of integers; -1 for floats, which must be finite."""
    bad: str = "not finite"
    """The meaning of a hit."""


@dataclass(frozen=True, slots=True)
class Hit:
    """The first bad element of one slot."""

    slot: Slot
    step: int
    phase: str
    place: int
    """The number of its event among all events, in the program's order."""
    index: tuple[int, int]
    """Row and element of the row."""
    bits: str
    number: int
    """The slot's number. Results of a call are numbered in their order."""


class Table:
    """The buffers on `device` for at most `max_slots` watched tensors and `ring` latest events.

    `live` [1] int32 is the number of live first rows of each watched tensor, negative for all. Each
    scan reads it on the device, so replays follow it. `clock` [2] int32 holds step and phase.
    `order` has the tick of each slot's last scan, in the program's order, as far as Python saw it.
    """

    def __init__(self, device: torch.device, max_slots: int = MAX_SLOTS, ring: int = RING) -> None:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.int32, device=device)

        self.device = device
        self.max_slots = max_slots
        self.ring = ring
        self.live = zeros(1) - 1
        self.clock = zeros(2)
        self.count = zeros(1)
        self.latches = zeros(max_slots, LATCH_FIELDS)
        self.events = zeros(ring, EVENT_FIELDS)
        self.first = torch.full((max_slots,), NEVER, dtype=torch.int64, device=device)
        self.slots: list[Slot] = []
        self.order: dict[int, int] = {}
        self._ticks = 0
        self._slot_of: dict[Hashable, int] = {}

    def slot(self, key: Hashable, slot: Slot) -> int | None:
        """The number of the slot with this key, made if it is new; None if the table is full."""
        if key not in self._slot_of:
            if len(self.slots) == self.max_slots:
                return None
            self._slot_of[key] = len(self.slots)
            self.slots.append(slot)
        return self._slot_of[key]

    def watch(self, key: Hashable, slot: Slot, tensor: Tensor, axis: int | None = 0) -> None:
        """Scan tensor [...] of a float type, such as bfloat16, into the slot of `key`.

        `axis` has the rows; None takes the whole as one row. A slot with a limit scans integers,
        int32 or int64.
        """
        if slot.limit < 0 and not can_watch(tensor):
            return
        number = self.slot(key, slot)
        if number is None:
            return
        self.scan(number, tensor, axis, slot.limit)

    def scan(self, number: int, tensor: Tensor, axis: int | None = 0, limit: int = -1) -> None:
        """Scan tensor [...] of a float type, or int32 with a `limit`, into an existing slot.

        Under tracing it changes no state of this process.
        """
        self._scan([number], [rows_of(tensor, axis)], [limit])

    def scan_together(self, numbers: list[int], tensors: list[Tensor]) -> None:
        """Scan all results tensors [rows, ...] of one op, of float types such as bfloat16, into
        existing slots.

        On CUDA one launch scans two of them. It is unknown which was written first.
        """
        self._scan(numbers, [rows_of(tensor) for tensor in tensors], [-1] * len(numbers))

    def _scan(self, numbers: list[int], rows: list[Tensor], limits: list[int]) -> None:
        # A traced scan is not run, so it gets no place in the order.
        if not torch.compiler.is_compiling():
            for number in numbers:
                self.order[number] = self._ticks = self._ticks + 1
        torch.ops.mla_harness.watch(
            rows,
            self.live,
            self.clock,
            self.latches,
            self.first,
            self.events,
            self.count,
            numbers,
            limits,
        )

    def begin_step(self) -> None:
        """Count one step on the device; inside a captured forward it counts each replay."""
        # On the device, in place: a graph that captured it counts its own replays.
        self.clock[:1].add_(1)

    def set_clock(self, step: int, phase: str) -> None:
        """Set step and phase from the host, without waiting for the device."""
        self.clock[0].fill_(step)
        self.clock[1].fill_(PHASES.index(phase))

    def rearm(self) -> None:
        """Forget all hits; what is captured goes on recording."""
        for name in BUFFERS:
            getattr(self, name).fill_(NEVER if name == "first" else 0)

    def hits(self) -> list[Hit]:
        """The first hit of every slot, in the program's order. Reads the device."""
        latches = self.latches.cpu().tolist()
        first = self.first.cpu().tolist()
        found = []
        for number, slot in enumerate(self.slots):
            step, _, place, phase, width, dtype, _ = latches[number]
            if step:
                index = first[number] >> 32
                bits = first[number] & 0xFFFFFFFF
                where = (index // width, index % width)
                found.append(
                    Hit(
                        slot,
                        step - 1,
                        PHASES[phase],
                        place,
                        where,
                        _hex(bits, DTYPES[dtype]),
                        number,
                    )
                )
        return _in_order(found)

    def scanned(self) -> list[Slot]:
        """The slots with scanned live rows, in the program's order as far as Python saw it."""
        seen = self.latches[:, -1].cpu().tolist()
        numbers = [number for number in range(len(self.slots)) if seen[number]]
        return [
            self.slots[number]
            for number in sorted(numbers, key=lambda number: self.order.get(number, -1))
        ]

    def recent(self) -> tuple[list[tuple[Slot, int, str]], int]:
        """The latest events in order as (slot, step, phase), and the number of older events that
        the ring lost.
        """
        count = int(self.count[0])
        events = self.events.cpu().tolist()
        start = max(0, count - self.ring)
        kept = (events[place % self.ring] for place in range(start, count))
        return [(self.slots[slot], step, PHASES[phase]) for slot, step, phase in kept], start


def _in_order(hits: list[Hit]) -> list[Hit]:
    """Hits by place.

    Hits of one call in one step, perhaps of one launch, are in the order of its results.
    """
    hits = sorted(hits, key=lambda hit: hit.place)
    starts: dict[Hashable, int] = {}
    for hit in hits:
        starts.setdefault((hit.step, hit.slot.op, hit.slot.call), hit.place)
    return sorted(hits, key=lambda hit: (starts[hit.step, hit.slot.op, hit.slot.call], hit.number))


def _hex(bits: int, dtype: torch.dtype) -> str:
    """`0x7fc00000 float32`; of a float64 the upper half, of an integer its value."""
    name = str(dtype).removeprefix("torch.")
    if not dtype.is_floating_point:
        return f"{bits - (1 << 32) if bits >> 31 else bits} {name}"
    return f"{hex_of(bits, min(dtype.itemsize, 4))} {name}"
