"""What one run of one test showed: which marks its assertions and its outputs held, and what it asserted on."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from harness.memory.poison.allocations import DispatcherPoison
from harness.memory.poison.marks import FREE_MEMORY, CallSite, Line, Marked, Owner, find, frame_of, narrow, plain, short
from harness.memory.poison.patterns import bits_view

KEPT_BYTES = 64 << 20
"""Tensors of one test that a comparison of two runs keeps; of the rest it keeps a digest."""


@dataclass(frozen=True, slots=True)
class PoisonFound:
    """A value that a test looked at holds memory that nobody wrote."""

    what: str
    where: str
    count: int
    total: int
    index: tuple[int, ...]
    bits: str
    owner: Owner | None
    """None for free CUDA memory, of which no line is known."""
    origins: tuple[tuple[Line, ...], ...]
    """Stacks of the allocations that it can come from, innermost line first; several where a mark has only 6 bits."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A tensor as it was when a test asserted on it; its digest stands for one too large to keep."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    tensor: torch.Tensor | None
    digest: bytes


@dataclass(frozen=True, slots=True)
class Asserted:
    """One assertion on tensors: where, and its sides."""

    where: str
    sides: tuple[Kept, ...]


@dataclass(slots=True)
class Counts:
    """How much was looked at, so that a pass in which nothing was says so."""

    filled: int = 0
    compared: int = 0
    elements: int = 0
    unreadable: int = 0


@dataclass(slots=True)
class Observation:
    """Filled while a test runs; `code` is the test function's."""

    poison: DispatcherPoison
    code: CodeType | None
    keeps: bool
    counts: Counts = field(default_factory=Counts)
    found: list[PoisonFound] = field(default_factory=list)
    asserted: list[Asserted] = field(default_factory=list)
    stacks: dict[int, tuple[Line, ...]] = field(default_factory=dict)
    filled_before: int = 0
    frame: FrameType | None = None
    frames_done: list[FrameType] = field(default_factory=list)
    _kept_bytes: int = 0
    _last: int = 0

    def filled(self, site: CallSite, frame: FrameType | None) -> None:
        """Remember the stack of a line's first allocation in this test."""
        if frame is not None and id(frame) != self._last:
            # A frame that allocates again has been followed up to the test already. Its id is kept, and not the frame:
            # that would keep alive what it holds.
            self.saw(frame)
            self._last = id(frame)
        if site.number not in self.stacks:
            self.stacks[site.number] = self.poison.call_sites.stack(frame) or (site.line,)

    def saw(self, frame: FrameType) -> None:
        """Remember the test's own frame, found from a frame below it: its locals outlive its return."""
        mine = frame_of(self.code, frame) if self.code is not None else None
        if mine is not None and mine is not self.frame:
            # A property test calls its function again and again; its last two calls are enough to hold.
            self.frames_done[:] = [self.frame] if self.frame is not None else []
            self.frame = mine

    def compared(self, name: str, frame: FrameType, sides: tuple[Any, ...]) -> None:
        """Judge the sides of an assertion made in `frame` (or below); ones made by the code under test are ignored."""
        place, owner = self.poison.call_sites.innermost(frame)
        if place is None or owner != "tests":
            return
        self.saw(place)
        where = f"{place.f_code.co_filename}:{place.f_lineno}"
        with looking(self.poison):
            tensors = [readable(side) for side in sides]
            self.counts.compared += 1
            self.counts.elements += sum(tensor.numel() for tensor in tensors if tensor is not None)
            self.counts.unreadable += sum(tensor is None for tensor in tensors)
            if self.poison.pattern == "nan":
                for number, tensor in enumerate(tensors):
                    if tensor is not None:
                        other = tensors[1 - number] if len(tensors) == 2 else None
                        self._judge(f"argument {number + 1} of {name}", where, tensor, other)
            if self.keeps:
                kept = tuple(self._keep(tensor) for tensor in tensors if tensor is not None)
                self.asserted.append(Asserted(f"{name} at {short(where)}", kept))

    def _judge(self, what: str, where: str, tensor: torch.Tensor, other: torch.Tensor | None) -> None:
        marks = find(tensor)
        if not marks:
            return
        # A test that hands its own unwritten buffer about and finds the same bits again has compared nothing unwritten.
        same = find(tensor, _same_bits(tensor, other)) if other is not None else marks
        differing = {mark.bits: mark for mark in same}
        for mark in marks:
            owner, origins = self.origins_of(mark)
            kept = mark if owner != "tests" else differing.get(mark.bits)
            if kept is not None:
                self.found.append(described(kept, tensor, what, where, owner, origins))

    def origins_of(self, mark: Marked) -> tuple[Owner | None, tuple[tuple[Line, ...], ...]]:
        """Whose memory a mark is, and the allocations it can stand for: of this test, where 6 bits leave several."""
        if mark.is_wide and mark.number == FREE_MEMORY:
            return None, ()
        if mark.is_wide:
            candidates = [mark.number]
        else:
            candidates = sorted(number for number in self.stacks if narrow(number) == mark.number)
        origins = [site for number in candidates if (site := self.poison.call_sites.numbered(number)) is not None]
        # Where several lines share the mark and one is a test's, the code is not accused.
        is_code = bool(origins) and all(site.owner == "code" for site in origins)
        stacks = tuple(self.stacks.get(site.number, (site.line,)) for site in origins)
        return "code" if is_code else "tests", stacks

    def _keep(self, tensor: torch.Tensor) -> Kept:
        copy = tensor.cpu().contiguous()
        copy = copy.clone() if copy.data_ptr() == tensor.data_ptr() else copy
        shape, dtype = tuple(copy.shape), copy.dtype
        self._kept_bytes += copy.nbytes
        if self._kept_bytes <= KEPT_BYTES:
            return Kept(shape, dtype, copy, b"")
        data = bits_view(copy).flatten().view(torch.uint8) if copy.numel() else torch.empty(0, dtype=torch.uint8)
        return Kept(shape, dtype, None, hashlib.blake2b(data.numpy().tobytes()).digest())


@contextlib.contextmanager
def looking(poison: DispatcherPoison) -> Iterator[None]:
    """Look at values without being seen: no poison, no autograd, no mode of the program under test."""
    # To put modes aside costs a quarter of a millisecond, and mostly there are none.
    aside = _disable_current_modes() if torch._C._len_torch_dispatch_stack() else contextlib.nullcontext()
    with poison.paused(), torch.no_grad(), torch._C.DisableTorchFunction(), aside:
        yield


def readable(value: Any) -> torch.Tensor | None:
    """The plain tensor of a tensor or an array; None for what has no bits to read (sparse, fake, of a transform)."""
    try:
        if not isinstance(value, torch.Tensor):
            import numpy

            if not isinstance(value, numpy.ndarray):
                return None
            value = torch.from_numpy(numpy.ascontiguousarray(value))
        if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.is_quantized:
            return None
        if torch._C._functorch.is_functorch_wrapped_tensor(value):
            return None
        if value.layout is not torch.strided or value.device.type not in ("cpu", "cuda"):
            return None
        return plain(value)
    except (TypeError, RuntimeError, ValueError, NotImplementedError):
        return None


def described(
    mark: Marked,
    tensor: torch.Tensor,
    what: str,
    where: str,
    owner: Owner | None,
    origins: tuple[tuple[Line, ...], ...],
) -> PoisonFound:
    """A mark in a tensor, in numbers that a reader can look up."""
    size = 8 * tensor.element_size()
    bits = f"0x{mark.bits & ((1 << size) - 1):0{size // 4}x} {str(tensor.dtype).removeprefix('torch.')}"
    index: list[int] = []
    rest = mark.first
    for length in reversed(tensor.shape):
        index.insert(0, rest % length)
        rest //= length
    return PoisonFound(what, where, mark.count, tensor.numel(), tuple(index), bits, owner, origins)


def _same_bits(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor | None:
    if tensor.shape != other.shape or tensor.dtype != other.dtype or tensor.device != other.device:
        return None
    return bits_view(tensor.contiguous()) == bits_view(other.contiguous())
