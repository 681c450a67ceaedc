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
from torch_poison.device_ranges import pieces_of, with_memory_at
from torch_poison.fences import Fence, fenced
from torch_poison.storages import whole_storage

from harness.memory import pools

ALIGNMENT = 64
_PIECE_BYTES = 1 << 30
"""Linux moves at most 2 GiB with one call."""


@dataclass(frozen=True, slots=True)
class Note:
    """A tensor in the arena.

    `start` is the first of its bytes there, `room` the bytes of its storage, `stride` and `offset`
    count elements. `parts` of the storage cross, one behind the other. Without them all elements
    cross, as the storage is mostly gaps.
    """

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    room: int
    start: int
    parts: tuple[pools.Range, ...] | None

    @property
    def torch_dtype(self) -> torch.dtype:
        dtype = getattr(torch, self.dtype)
        assert isinstance(dtype, torch.dtype)
        return dtype

    @property
    def num_bytes(self) -> int:
        """The bytes in the arena."""
        if self.parts is None:
            return math.prod(self.shape) * self.torch_dtype.itemsize
        return sum(end - begin for begin, end in self.parts)


def note_of(tensor: Tensor, start: int) -> Note:
    """The note of a tensor [...] of any dtype (bfloat16, uint8) and stride, on the CPU or a GPU.

    Its bytes will lie at `start`, which counts bytes of the arena.
    """
    room = tensor.untyped_storage().nbytes()
    parts: tuple[pools.Range, ...] | None = ((0, room),) if room else ()
    # A few elements in a huge storage, such as one page of a large pool: the storage would take
    # longer to cross than the call itself.
    if room > pools.MOST_GAPS * max(tensor.nbytes, 1):
        parts = None
    elif pools.is_large(tensor):
        parts = tuple(pools.used(tensor))
    return Note(
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=tuple(tensor.shape),
        stride=tensor.stride(),
        offset=int(tensor.storage_offset()),
        room=room,
        start=start,
        parts=parts,
    )


def after(note: Note) -> int:
    """The first free byte of the arena behind a tensor."""
    return -(-(note.start + note.num_bytes) // ALIGNMENT) * ALIGNMENT


def write(arena: int, tensor: Tensor, note: Note) -> None:
    """Write the bytes of a tensor [...] of any dtype, such as bfloat16, into the file `arena`.

    The tensor may lie on any device. `note` says which bytes cross, and where they go.
    """
    if note.parts is None:
        elements = tensor.contiguous().cpu()
        _write(arena, _memory(elements), note.start)
        return
    storage = whole_storage(tensor, torch.uint8)
    at = note.start
    for begin, end in note.parts:
        # Of a GPU, each part comes by itself: the storage of a copy would have no gaps.
        part = storage[begin:end].cpu()
        _write(arena, _memory(part), at)
        at += end - begin


def read_into(arena: int, tensor: Tensor, note: Note) -> bool:
    """Read the bytes of a tensor [...] of any dtype, such as bfloat16, from the file `arena`.

    The tensor is on the CPU and is written in place. `note` says where its bytes lie.
    Returns False if the file is too short. Gaps stay as they are, as they did not cross.
    """
    if note.parts is None:
        elements = torch.empty(tensor.shape, dtype=tensor.dtype)
        if not _read(arena, _memory(elements), note.start):
            return False
        tensor.copy_(elements)
        return True
    memory = _memory(whole_storage(tensor, torch.uint8))
    at = note.start
    for begin, end in note.parts:
        if not _read(arena, memory[begin:end], at):
            return False
        at += end - begin
    return True


def received(arena: int, note: Note, fence: Fence, device: str) -> Tensor:
    """A tensor with memory of its own on `device`, and the bytes, strides and gaps of the note's.

    With a `fence` its memory begins or ends at memory without access, but not that of a large pool.
    """
    is_whole = note.parts is not None and note.room <= pools.LARGE_BYTES
    is_fenced = fence != "none" and note.room > 0 and is_whole
    # On a GPU the bytes come here first, and the fence stands around the memory there.
    if is_fenced and device == "cpu":
        memory = fenced(note.room, fence, "cpu")
    elif is_whole:
        memory = torch.empty(note.room, dtype=torch.uint8)
    else:
        memory = pools.untouched(note.room)[: note.room]
    # A storage need not be a whole number of elements. `view` needs one.
    tensor = memory[: note.room // note.torch_dtype.itemsize * note.torch_dtype.itemsize]
    tensor = tensor.view(note.torch_dtype).as_strided(note.shape, note.stride, note.offset)
    read_into(arena, tensor, note)
    if device == "cpu":
        return tensor
    return _moved(tensor, memory, note, fence if is_fenced else "none", device)


def _moved(tensor: Tensor, memory: Tensor, note: Note, fence: Fence, device: str) -> Tensor:
    """`tensor` in the bytes `memory` on the host, as the same view of as many bytes on `device`.

    A pool that does not fit there gets memory for its rows alone.
    """
    if note.parts is not None:
        # Zeros in the gaps: what a kernel wrote there is found later by what is not zero.
        room = fenced(note.room, fence, device) if fence != "none" else _zeros(note.room, device)
        for begin, end in note.parts:
            room[begin:end].copy_(memory[begin:end])
        return room.view(note.torch_dtype).as_strided(note.shape, note.stride, note.offset)
    try:
        room = torch.empty(note.room, dtype=torch.uint8, device=device)
    except torch.OutOfMemoryError:
        # Addresses as in the whole pool, so that offsets past 2**31 stay such, with memory behind
        # the rows only.
        room = with_memory_at(note.room, pieces_of(tensor))
    view = room.view(note.torch_dtype).as_strided(note.shape, note.stride, note.offset)
    return view.copy_(tensor)


def _zeros(num_bytes: int, device: str) -> Tensor:
    return torch.zeros(num_bytes, dtype=torch.uint8, device=device)


def _write(arena: int, memory: memoryview, start: int) -> None:
    done = 0
    while done < len(memory):
        done += os.pwrite(arena, memory[done : done + _PIECE_BYTES], start + done)


def _read(arena: int, memory: memoryview, start: int) -> bool:
    done = 0
    while done < len(memory):
        count = os.preadv(arena, [memory[done : done + _PIECE_BYTES]], start + done)
        # The end of the file: the other side wrote fewer bytes than its note says.
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
