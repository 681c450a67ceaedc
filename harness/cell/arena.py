"""How tensors cross between a judge and a cell: their bytes lie in a file without a name, and a
note says where.

The judge writes the inputs, the cell reads them into memory of its own, so each call has other
addresses. The cell writes the inputs back, as the judge looks for changes, and the outputs behind
them. Both read and write with calls of the system. Memory that both map would let a cell shrink the
file under the judge.
"""

from __future__ import annotations

import ctypes
import math
import os
from dataclasses import dataclass

import torch
from torch import Tensor
from torch_poison.fences import Fence, fenced

MOST_GAPS = 64
"""A tensor crosses without its gaps if its storage is more than this many times its elements."""
SPARSE_BYTES = 64 << 20
"""Of a larger tensor only the rows cross that hold something: such a pool is empty but for some
pages.
"""
ALIGNMENT = 64
_PIECE_BYTES = 1 << 30
"""Linux moves at most 2 GiB with one call."""


@dataclass(frozen=True, slots=True)
class Note:
    """A tensor in the arena.

    `start` is the first of its bytes there, `room` the bytes of its storage, `stride` and `offset`
    count elements. `rows` are the rows of dim 0 that crossed. Without them it is the whole storage,
    or all elements if the storage is mostly gaps.
    """

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    room: int
    start: int
    rows: tuple[int, ...] | None
    has_gaps: bool

    @property
    def torch_dtype(self) -> torch.dtype:
        dtype = getattr(torch, self.dtype)
        assert isinstance(dtype, torch.dtype)
        return dtype

    @property
    def num_bytes(self) -> int:
        """The bytes in the arena."""
        if self.rows is not None:
            return len(self.rows) * math.prod(self.shape[1:]) * self.torch_dtype.itemsize
        if self.has_gaps:
            return math.prod(self.shape) * self.torch_dtype.itemsize
        return self.room


def note_of(tensor: Tensor, start: int) -> Note:
    """How `tensor`, of any shape, dtype and stride on the CPU, crosses with its bytes at `start`."""
    room = tensor.untyped_storage().nbytes()
    has_gaps = room > MOST_GAPS * max(tensor.nbytes, 1)
    rows = None
    if not has_gaps and room > SPARSE_BYTES and tensor.is_contiguous() and tensor.ndim > 1:
        rows = tuple(_rows_with_content(tensor))
    return Note(
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=tuple(tensor.shape),
        stride=tensor.stride(),
        offset=int(tensor.storage_offset()),
        room=room,
        start=start,
        rows=rows,
        has_gaps=has_gaps,
    )


def after(note: Note) -> int:
    """The first free byte of the arena behind a tensor."""
    return -(-(note.start + note.num_bytes) // ALIGNMENT) * ALIGNMENT


def _rows_with_content(tensor: Tensor) -> list[int]:
    # Reading memory that was never written costs little: the system shows one page of zeros.
    flat = tensor.view(torch.uint8).view(len(tensor), -1)
    width = flat.shape[1]
    words = flat.view(torch.int64) if width % 8 == 0 else flat
    return [row for row in range(len(words)) if bool(words[row].any())]


def _crossing(tensor: Tensor, note: Note) -> Tensor:
    """The elements of `tensor` that cross, as a contiguous tensor or the storage itself."""
    if note.rows is not None:
        return tensor[torch.tensor(note.rows, dtype=torch.long)]
    if note.has_gaps:
        return tensor.contiguous()
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


def write(arena: int, tensor: Tensor, note: Note) -> None:
    """Write the bytes of a tensor on the CPU into the file `arena`."""
    bytes_of = _memory(_crossing(tensor, note))
    done = 0
    while done < len(bytes_of):
        done += os.pwrite(arena, bytes_of[done : done + _PIECE_BYTES], note.start + done)


def read_into(arena: int, tensor: Tensor, note: Note) -> bool:
    """Read the bytes of a tensor on the CPU from the file `arena`, in place.

    Returns False if the file is too short. Gaps stay as they are, as they did not cross.
    """
    found = _crossing(tensor, note)
    if not _read(arena, _memory(found), note.start):
        return False
    if note.rows is not None:
        tensor[torch.tensor(note.rows, dtype=torch.long)] = found
    elif note.has_gaps:
        tensor.copy_(found)
    return True


def received(arena: int, note: Note, fence: Fence, device: str) -> Tensor:
    """A tensor with memory of its own on `device`, and the bytes, strides and gaps of the note's.

    With a `fence` its memory begins or ends at memory without access.
    """
    dtype, size = note.torch_dtype, note.torch_dtype.itemsize
    if note.rows is not None or note.has_gaps:
        # Zeros of this size are addresses that get memory when they are written.
        flat = torch.zeros(note.room // size, dtype=dtype, device=device)
        tensor = flat.as_strided(note.shape, note.stride, note.offset)
        shape = note.shape if note.rows is None else (len(note.rows), *note.shape[1:])
        content = torch.empty(shape, dtype=dtype)
        _read(arena, _memory(content), note.start)
        if note.rows is None:
            tensor.copy_(content)
        else:
            tensor[torch.tensor(note.rows, dtype=torch.long, device=device)] = content.to(device)
        return tensor
    on_host = torch.empty(note.room, dtype=torch.uint8)
    if fence != "none" and note.room and device == "cpu":
        on_host = fenced(note.room, fence, "cpu")
    _read(arena, _memory(on_host), note.start)
    flat = on_host
    if device != "cpu":
        flat = fenced(note.room, fence, device) if fence != "none" and note.room else on_host
        flat = flat.copy_(on_host) if flat is not on_host else on_host.to(device)
    return flat.view(dtype).as_strided(note.shape, note.stride, note.offset)


def _read(arena: int, memory: memoryview, start: int) -> bool:
    done = 0
    while done < len(memory):
        count = os.preadv(arena, [memory[done : done + _PIECE_BYTES]], start + done)
        if count == 0:
            return False
        done += count
    return True


def _memory(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the CPU, writable."""
    if not tensor.numel():
        return memoryview(b"")
    address = tensor.data_ptr()
    return memoryview((ctypes.c_char * tensor.nbytes).from_address(address)).cast("B")
