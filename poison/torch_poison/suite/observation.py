"""Observe one run of a test: the marks in its asserted values, and copies of these values."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

import numpy
import torch
from torch.utils._python_dispatch import _disable_current_modes

from torch_poison.allocations import DispatcherPoison
from torch_poison.marks import (
    FREE_MEMORY,
    CallSite,
    Line,
    Marked,
    Owner,
    find,
    frame_of,
    narrow,
    plain,
    short,
)
from torch_poison.patterns import bits_view, hex_of

KEPT_BYTES = 64 << 20
"""How much of a test's asserted tensors is kept to compare two runs.

Of the rest, a digest is kept.
"""


@dataclass(frozen=True, slots=True)
class PoisonFound:
    """A value that a test examined holds uninitialised memory."""

    what: str
    where: str
    count: int
    total: int
    index: tuple[int, ...]
    bits: str
    owner: Owner | None
    """None for free CUDA memory, which no line allocated."""
    origins: tuple[tuple[Line, ...], ...]
    """Stacks of the possible allocations, innermost line first.

    A mark of only 6 bits can have several.
    """


@dataclass(frozen=True, slots=True)
class Kept:
    """A tensor at the time of an assertion, or its digest if the tensor is too large to keep."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    tensor: torch.Tensor | None
    digest: bytes


@dataclass(frozen=True, slots=True)
class Asserted:
    """One assertion on tensors: its place and its sides."""

    where: str
    sides: tuple[Kept, ...]


@dataclass(slots=True)
class Counts:
    """How much was filled and examined."""

    filled: int = 0
    compared: int = 0
    elements: int = 0
    unreadable: int = 0


@dataclass(slots=True)
class Observation:
    """The state of a running test. `code` is the code of the test function."""

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
            # Only the first allocation of a frame searches the test. The id is kept, because the
            # frame would keep its locals alive.
            self.saw(frame)
            self._last = id(frame)
        if site.number not in self.stacks:
            self.stacks[site.number] = self.poison.call_sites.stack(frame) or (site.line,)

    def saw(self, frame: FrameType) -> None:
        """Remember the test's own frame above `frame`, so that its locals outlive the test."""
        mine = frame_of(self.code, frame) if self.code is not None else None
        if mine is not None and mine is not self.frame:
            # A property test calls its function many times. The last two calls are kept.
            self.frames_done[:] = [self.frame] if self.frame is not None else []
            self.frame = mine

    def compared(self, name: str, frame: FrameType, sides: tuple[Any, ...]) -> None:
        """Judge the sides of an assertion in `frame`.

        Assertions of the code under test are ignored.
        """
        place, owner = self.poison.call_sites.innermost(frame)
        if place is None or owner != "tests":
            return
        self.saw(place)
        where = f"{place.f_code.co_filename}:{place.f_lineno}"
        with looking(self.poison):
            tensors = [readable(side) for side in sides]
            self.counts.unreadable += sum(tensor is None for tensor in tensors)
            self.found += self._judged("argument", name, where, tensors)
            if self.keeps:
                kept = tuple(self._keep(tensor) for tensor in tensors if tensor is not None)
                self.asserted.append(Asserted(f"{name} at {short(where)}", kept))

    def operands(
        self, name: str, frame: FrameType, sides: tuple[Any, ...]
    ) -> list[PoisonFound] | None:
        """What the operands of a comparison hold, if a file of tests makes it; None for other
        code.
        """
        if self.poison.call_sites.owner_of(frame.f_code.co_filename) != "tests":
            return None
        self.saw(frame)
        where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        with looking(self.poison):
            tensors = [readable(side) if isinstance(side, torch.Tensor) else None for side in sides]
            return self._judged("side", name, where, tensors)

    def _judged(
        self, word: str, name: str, where: str, tensors: list[torch.Tensor | None]
    ) -> list[PoisonFound]:
        """Count the comparison `name` of tensors of any shape.

        Returns what each of them holds, called by `word`.
        """
        self.counts.compared += 1
        self.counts.elements += sum(tensor.numel() for tensor in tensors if tensor is not None)
        found: list[PoisonFound] = []
        for number, tensor in enumerate(tensors if self.poison.pattern == "nan" else ()):
            if tensor is not None:
                other = tensors[1 - number] if len(tensors) == 2 else None
                found += self._judge(f"{word} {number + 1} of {name}", where, tensor, other)
        return found

    def _judge(
        self, what: str, where: str, tensor: torch.Tensor, other: torch.Tensor | None
    ) -> Iterator[PoisonFound]:
        marks = find(tensor)
        if not marks:
            return
        # A test may compare its own unwritten buffer with itself: equal bits on both sides are no
        # finding then.
        same = find(tensor, _same_bits(tensor, other)) if other is not None else marks
        differing = {mark.bits: mark for mark in same}
        for mark in marks:
            owner, origins = self.origins_of(mark)
            kept = mark if owner != "tests" else differing.get(mark.bits)
            if kept is not None:
                yield described(kept, tensor, what, where, owner, origins)

    def origins_of(self, mark: Marked) -> tuple[Owner | None, tuple[tuple[Line, ...], ...]]:
        """The owner of a mark's memory, and the stacks of its possible allocations (several for a
        6-bit mark).
        """
        if mark.is_wide and mark.number == FREE_MEMORY:
            return None, ()
        if mark.is_wide:
            candidates = [mark.number]
        else:
            candidates = sorted(number for number in self.stacks if narrow(number) == mark.number)
        origins = [
            site
            for number in candidates
            if (site := self.poison.call_sites.numbered(number)) is not None
        ]
        # If one of several possible lines is a test's, the code is not accused.
        is_code = bool(origins) and all(site.owner == "code" for site in origins)
        stacks = tuple(self.stacks.get(site.number, (site.line,)) for site in origins)
        return "code" if is_code else "tests", stacks

    def _keep(self, tensor: torch.Tensor) -> Kept:
        copy = tensor.cpu().contiguous()
        # The test may change its tensor in place later; what it asserted must stay.
        copy = copy.clone() if copy.data_ptr() == tensor.data_ptr() else copy
        shape = tuple(copy.shape)
        dtype = copy.dtype
        self._kept_bytes += copy.nbytes
        if self._kept_bytes <= KEPT_BYTES:
            return Kept(shape, dtype, copy, b"")
        data = (
            bits_view(copy).flatten().view(torch.uint8)
            if copy.numel()
            else torch.empty(0, dtype=torch.uint8)
        )
        return Kept(shape, dtype, None, hashlib.blake2b(data.numpy().tobytes()).digest())


@contextlib.contextmanager
def looking(poison: DispatcherPoison) -> Iterator[None]:
    """Read values without poison, autograd, or modes of the program under test."""
    # Disabling modes costs a quarter of a millisecond, and mostly there are none.
    aside = (
        _disable_current_modes()
        if torch._C._len_torch_dispatch_stack()
        else contextlib.nullcontext()
    )
    with poison.paused(), torch.no_grad(), torch._C.DisableTorchFunction(), aside:
        yield


def readable(value: Any) -> torch.Tensor | None:
    """The plain tensor of a tensor or an array; None if its bits cannot be read (sparse, fake, of a
    transform).
    """
    try:
        if isinstance(value, numpy.ndarray):
            value = torch.from_numpy(numpy.ascontiguousarray(value))
        if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.is_quantized:
            return None
        # Inside vmap or grad a tensor stands for many, and has no memory of its own to read.
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
    """The finding for `mark` in `tensor` [...] of any dtype, such as bfloat16 or int64.

    `what` names the tensor and `where` the line that examined it; `origins` are the stacks of the
    allocations that can have left the mark.
    """
    bits = f"{hex_of(mark.bits, tensor.element_size())} {str(tensor.dtype).removeprefix('torch.')}"
    index = tuple(map(int, numpy.unravel_index(mark.first, tensor.shape)))
    return PoisonFound(what, where, mark.count, tensor.numel(), index, bits, owner, origins)


def _same_bits(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor | None:
    if tensor.shape != other.shape or tensor.dtype != other.dtype or tensor.device != other.device:
        return None
    return bits_view(tensor.contiguous()) == bits_view(other.contiguous())
