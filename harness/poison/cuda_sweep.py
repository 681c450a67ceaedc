"""Poison for free CUDA memory: fill every block that the caching allocator holds and nobody owns.

A later `torch.empty`, also one made inside a C++ or CUDA extension, then starts as sentinel, and so does the private
pool of a captured graph between replays. The allocator's own snapshot lists the free blocks; no build step is needed.

Stream order is the rule that keeps live data safe. A freed block may still be read by kernels queued on the stream
it was allocated for, and after reuse it is written by that stream. So the fill runs on the current stream after
everything queued on any stream that owns a block, and those streams wait for the fill before their next work. Blocks
that other streams still use (`record_stream`) are "pending free" in the snapshot and are left alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from harness.errors import HarnessError
from harness.poison.cuda_kernels import fill_chunks

FILL_WORD = -1
"""Every byte 0xFF: NaN in all float types and -1 as an int, as the type of free memory is not known."""

CHUNK_BYTES = 1 << 17


class UnreadableAllocator(HarnessError):
    """The allocator's back end does not list its free blocks."""


@dataclass(frozen=True, slots=True)
class Swept:
    """What one sweep did."""

    num_blocks: int
    num_bytes: int


class CudaSweep:
    """Fills the free memory of one device. Keep one object: it owns the table of chunks that each fill uploads."""

    def __init__(self, device: int | None = None) -> None:
        if not torch.cuda.is_available():
            raise UnreadableAllocator("poison of free CUDA memory needs a CUDA device; torch sees none on this machine")
        backend = torch.cuda.get_allocator_backend()
        if backend != "native":
            raise UnreadableAllocator(
                f"allocator back end {backend!r} lists no free blocks; unset backend in PYTORCH_CUDA_ALLOC_CONF"
            )
        self.device = torch.cuda.current_device() if device is None else device
        self._uploaded = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._reserve(1 << 14)

    def __call__(self) -> Swept:
        """Fill every free block, graph pools included; no host sync. Refused while this stream captures a graph."""
        if torch.cuda.is_current_stream_capturing():
            raise UnreadableAllocator("a sweep cannot run inside a graph capture; sweep before it and between replays")
        with torch.cuda.device(self.device):
            addresses, sizes, streams = free_blocks(self.device)
            num_chunks = int((-(-sizes // CHUNK_BYTES)).sum())
            if num_chunks > self._table.shape[1]:
                # A larger table may take one of the blocks just listed, so the list is made again.
                self._reserve(2 * num_chunks)
                return self()
            if num_chunks:
                with _ordered_after(streams, self.device):
                    self._fill(chunk_table(addresses, sizes))
        return Swept(len(addresses), int(sizes.sum()))

    def _reserve(self, capacity: int) -> None:
        self._host = torch.empty((2, capacity), dtype=torch.int64, pin_memory=True)
        self._table = torch.empty((2, capacity), dtype=torch.int64, device=self.device)

    def _fill(self, chunks: np.ndarray) -> None:
        # The previous upload may still be reading the pinned table.
        self._uploaded.synchronize()
        num_chunks = chunks.shape[1]
        self._host[:, :num_chunks] = torch.from_numpy(chunks)
        for row in range(2):
            self._table[row, :num_chunks].copy_(self._host[row, :num_chunks], non_blocking=True)
        self._uploaded.record()
        fill_chunks(self._table, num_chunks, FILL_WORD, CHUNK_BYTES)


def chunk_table(addresses: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Cut blocks (int64 [n] addresses and sizes in bytes) into chunks: int64 [2, chunks] of address and size."""
    chunks = -(-sizes // CHUNK_BYTES)
    first = np.repeat(np.cumsum(chunks) - chunks, chunks)
    offset = (np.arange(int(chunks.sum())) - first) * CHUNK_BYTES
    return np.stack([np.repeat(addresses, chunks) + offset, np.minimum(np.repeat(sizes, chunks) - offset, CHUNK_BYTES)])


def free_blocks(device: int) -> tuple[np.ndarray, np.ndarray, set[int]]:
    """Addresses and sizes in bytes (int64) of the free blocks of `device`, and the streams that own them."""
    addresses: list[int] = []
    sizes: list[int] = []
    streams: set[int] = set()
    for segment in torch.cuda.memory_snapshot():  # type: ignore[no-untyped-call]
        if segment["device"] != device:
            continue
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] == "inactive":
                addresses.append(address)
                sizes.append(block["size"])
                streams.add(segment["stream"])
            address += block["size"]
    return np.asarray(addresses, dtype=np.int64), np.asarray(sizes, dtype=np.int64), streams


@contextlib.contextmanager
def _ordered_after(streams: set[int], device: int) -> Iterator[None]:
    """Order the block after the work queued on `streams`, and their later work after the block."""
    current = torch.cuda.current_stream(device)
    others = [
        torch.cuda.ExternalStream(raw, device=device)  # type: ignore[no-untyped-call]
        for raw in streams
        if raw != current.cuda_stream
    ]
    for stream in others:
        current.wait_stream(stream)
    yield
    for stream in others:
        stream.wait_stream(current)
