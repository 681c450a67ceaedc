"""The lines of a program that allocate memory, and their marks in this memory.

A line has a number, an owner (code or tests) and a stack. Frames of torch, numpy, the standard
library and pytest are passed over: `torch.zeros` called from a test is the test's line.

A mark is a sentinel with the number of the line instead of a site's tag. A float32 or float64 has
room for 16 bits, bfloat16 and float16 for 6, a 32-bit or 64-bit integer for 6 (an index that no
tensor has). With 6 bits several lines share one mark, and a reader gets all of them. 8-bit and
16-bit integers, bool and fp8 have no value to spare: they are filled, but have no number.
"""

from __future__ import annotations

import functools
import os
import sysconfig
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Literal

import torch
from torch import Tensor

from torch_poison.patterns import OUT_OF_RANGE, bits_view, narrower_nans, quiet_bits

Owner = Literal["code", "tests"]

MAX_DEPTH = 80
MAX_STACK = 8
Line = tuple[CodeType, int]


@dataclass(frozen=True, slots=True)
class CallSite:
    """A line that allocates memory: its number (1, 2, …) and its owner."""

    number: int
    owner: Owner
    line: Line


def describe(line: Line) -> str:
    """`path:line in function`."""
    return f"{line[0].co_filename}:{line[1]} in {line[0].co_qualname}"


def _folder(path: str | None) -> str:
    # No path of a file begins with a NUL.
    return str(Path(path).resolve()) + "/" if path else "\0"


_UNKNOWN = compile("", "<a thread without Python>", "exec")


class CallSites:
    """The table of lines that allocated.

    `is_test_file` returns whether a path holds tests. Frames in the folders `passed_over` and
    `calls_tests` are passed over, and a stack ends at `calls_tests`.
    """

    def __init__(
        self,
        is_test_file: Callable[[str], bool],
        passed_over: Iterable[str],
        calls_tests: Iterable[str] = (),
    ) -> None:
        self._is_test_file = is_test_file
        self._calls_tests = tuple(_folder(path) for path in calls_tests)
        self._passed_over = (*(_folder(path) for path in passed_over), *self._calls_tests)
        self._library = _folder(sysconfig.get_path("stdlib"))
        self._owners: dict[str, Owner | None] = {}
        self._of_line: dict[Line, CallSite] = {}
        self._of_number: dict[int, CallSite] = {}

    def owner_of(self, path: str) -> Owner | None:
        """The owner of a file; None if it is passed over."""
        try:
            return self._owners[path]
        except KeyError:
            owner = self._owners[path] = self._judge(path)
            return owner

    def _judge(self, path: str) -> Owner | None:
        if path.startswith(self._passed_over) or path.startswith("<frozen"):
            return None
        # site-packages lies below the library's folder, and holds code under test.
        if path.startswith(self._library) and "-packages" not in path[len(self._library) :]:
            return None
        return "tests" if self._is_test_file(path) else "code"

    def innermost(self, frame: FrameType | None) -> tuple[FrameType | None, Owner]:
        """The innermost frame of the program at or above `frame`, and its owner."""
        for _ in range(MAX_DEPTH):
            if frame is None:
                break
            owner = self.owner_of(frame.f_code.co_filename)
            if owner is not None:
                return frame, owner
            frame = frame.f_back
        return None, "code"

    def note(self, frame: FrameType | None) -> CallSite:
        """The call site of an allocation made in `frame` or below, added if it is new."""
        found = frame
        owner = self._owners.get(frame.f_code.co_filename) if frame is not None else None
        if owner is None:
            found, owner = self.innermost(frame)
        line: Line = (found.f_code, found.f_lineno) if found is not None else (_UNKNOWN, 0)
        site = self._of_line.get(line)
        if site is None:
            site = CallSite(len(self._of_line) + 1, owner, line)
            self._of_line[line] = self._of_number[site.number] = site
        return site

    def numbered(self, number: int) -> CallSite | None:
        """The call site with this number, or None."""
        return self._of_number.get(number)

    def stack(self, frame: FrameType | None) -> tuple[Line, ...]:
        """The program's lines at and above `frame`, innermost first, up to the one called from
        `calls_tests`.
        """
        stack: list[Line] = []
        while frame is not None and len(stack) < MAX_STACK:
            path = frame.f_code.co_filename
            if path.startswith(self._calls_tests):
                break
            if self.owner_of(path) is not None:
                stack.append((frame.f_code, frame.f_lineno))
            frame = frame.f_back
        return tuple(stack)


def frame_of(code: CodeType, frame: FrameType | None) -> FrameType | None:
    """The nearest frame at or above `frame` that runs `code`."""
    for _ in range(MAX_DEPTH):
        if frame is None or frame.f_code is code:
            return frame
        frame = frame.f_back
    return None


def short(place: str) -> str:
    """A place relative to the working folder, if it lies below."""
    path, rest, tail = place.partition(":")
    with_folder = Path(path)
    folder = Path(os.getcwd())
    return f"{with_folder.relative_to(folder) if with_folder.is_relative_to(folder) else path}{rest}{tail}"  # noqa: E501


NARROW = 40
"""The numbers of narrow marks are 1 to 40.

Arithmetic makes NaN with 0 and 63 in bfloat16, and 41 to 47 become one value in a cast to float32.
"""
WIDE = 0xFFFF
FREE_MEMORY = 0
"""The number of free CUDA memory, filled before a test with all bits set. It has no line."""

_WIDE_TYPES = (torch.float32, torch.float64)
_INTEGERS = (torch.int32, torch.int64)


def narrow(number: int) -> int:
    """The 6 bits that a narrow mark keeps of a number."""
    return (number - 1) % NARROW + 1


def has_marks(dtype: torch.dtype) -> bool:
    """Whether marks differ from values in this type."""
    return quiet_bits(dtype) is not None or dtype in _INTEGERS or dtype.is_complex


@functools.cache
def mark_bits(dtype: torch.dtype, number: int) -> int:
    """The mark of a line in `dtype`, as the (signed) integer of `bits_view`; -1 without room for a
    mark.
    """
    quiet = quiet_bits(dtype)
    if quiet is not None:
        return quiet | (min(number, WIDE) if dtype in _WIDE_TYPES else narrow(number))
    if dtype in _INTEGERS:
        index = OUT_OF_RANGE | narrow(number)
        # A 64-bit index is often read as two of 32 bits, so both halves hold it.
        return index | index << 32 if dtype == torch.int64 else index
    return 0xFF if dtype.itemsize == 1 else -1


def plain(tensor: Tensor) -> Tensor:
    """The values of `tensor` [...] of any dtype, without conjugate or negative bits.

    Complex numbers become pairs of reals: complex64 [...] -> float32 [..., 2]. Marks are bits of
    memory, and a lazy bit would hide them.
    """
    tensor = tensor.detach().resolve_conj().resolve_neg()
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def mark_(tensor: Tensor, number: int) -> None:
    """Fill the fresh `tensor` [...] of any dtype, except gaps of its strides, with the mark of a
    line.

    float32 and float64 hold the line's whole number, other types its narrow one or none; see
    :func:`mark_bits`.
    """
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    bits_view(tensor).fill_(mark_bits(tensor.dtype, number))


@dataclass(frozen=True, slots=True)
class Marked:
    """The elements of a tensor with one mark: its number, their count, and the flat index of the
    first.

    The number is whole if `is_wide`, otherwise the bits that :func:`narrow` keeps.
    """

    bits: int
    number: int
    is_wide: bool
    count: int
    first: int


def find(tensor: Tensor, except_where: Tensor | None = None) -> list[Marked]:
    """The verbatim marks in `tensor` [...], as :func:`plain` returns it.

    Elements under the mask `except_where` [...] bool, of the same shape, are left out.
    """
    suspects = _suspects(tensor)
    if suspects is None:
        return []
    if except_where is not None:
        suspects = suspects & ~except_where
    where = suspects.flatten().nonzero().flatten()
    if len(where) == 0:
        return []
    bits = bits_view(tensor.contiguous()).flatten()[where]
    found = []
    for value in torch.unique(bits).tolist():
        read = number_of(tensor.dtype, int(value), tensor.is_cuda)
        if read is not None:
            at = where[bits == value]
            found.append(Marked(int(value), read[0], read[1], len(at), int(at[0])))
    return found


def _suspects(tensor: Tensor) -> Tensor | None:
    """Elements that could be marks; None when one cheap pass shows that there are none."""
    if tensor.numel() == 0 or not has_marks(tensor.dtype):
        return None
    suspects = tensor.isnan() if tensor.dtype.is_floating_point else tensor > OUT_OF_RANGE
    return suspects if bool(suspects.any()) else None


def number_of(dtype: torch.dtype, bits: int, is_cuda: bool = False) -> tuple[int, bool] | None:
    """The number in a mark, and whether it is whole or narrow; None for any other value.

    A cast to a wider float keeps a mark in the upper bits. A negation flips the sign.
    """
    size = 8 * dtype.itemsize
    bits &= (1 << size) - 1
    quiet = quiet_bits(dtype)
    if quiet is None:
        if dtype == torch.int64 and bits >> 32 != bits & 0xFFFF_FFFF:
            return None
        number = (bits & 0xFFFF_FFFF) - OUT_OF_RANGE
        return (number, False) if 1 <= number <= NARROW else None
    # The sweep of free CUDA memory knows no type and writes 0xFF bytes, which no line's mark has.
    if is_cuda and bits == (1 << size) - 1:
        return FREE_MEMORY, True
    bits &= (1 << size - 1) - 1
    is_wide = dtype in _WIDE_TYPES
    room, most = (WIDE, WIDE) if is_wide else (0x3F, NARROW)
    if bits & ~room == quiet and 1 <= bits & room <= most:
        return bits & room, is_wide
    # The widest source first: a mark of float32 in a float64 is whole, and its bits may look like a
    # narrow one too.
    widened = (number_of(small, nan) for small, nan in reversed(list(narrower_nans(dtype, bits))))
    return next((found for found in widened if found is not None), None)
