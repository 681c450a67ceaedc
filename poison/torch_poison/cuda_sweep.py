"""Poison for free CUDA memory: fill every free block of the caching allocator.

A later `torch.empty`, also inside a C++ or CUDA extension, then starts as sentinel, and so does the
private pool of a captured graph between replays. `cuda_blocks` lists the free blocks.

Stream order keeps live data safe. Kernels queued on a block's stream may still read it after it is
freed. So the fill runs on the current stream after all work queued on these streams, and they wait
for the fill. Blocks that other streams still use (`record_stream`) are "pending free" and are not
filled.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType

import torch

from torch_poison.allocations import AllocationPoison
from torch_poison.cuda_blocks import list_chunks
from torch_poison.cuda_kernels import fill_chunks
from torch_poison.errors import PoisonError
from torch_poison.patterns import Poison
from torch_poison.sites import WORKSPACE, names

FILL_WORD = -1
"""All bytes 0xFF: NaN in all float types and -1 as an int. Free memory has no type."""

_WORDS = {"nan": FILL_WORD, "zeros": 0, "max": 0x7F7F7F7F, "inf": 0x7F807F80, "random": 0x3F5A3E96}
"""The word of a pattern without a type: a large bfloat16 and float32, an Inf as bfloat16, some
number.
"""


class UnreadableAllocator(PoisonError):
    """The allocator's back end does not list its free blocks."""


@dataclass(frozen=True, slots=True)
class Swept:
    """The size of one sweep."""

    num_blocks: int
    num_bytes: int


class CudaSweep:
    """Fills the free memory of one device.

    It owns the table of chunks, so share one object, see `of`.
    """

    def __init__(self, device: int | None = None) -> None:
        if not torch.cuda.is_available():
            raise UnreadableAllocator(
                "poison of free CUDA memory needs a CUDA device; torch sees none on this machine"
            )
        backend = torch.cuda.get_allocator_backend()
        if backend != "native":
            raise UnreadableAllocator(
                f"allocator back end {backend!r} lists no free blocks; unset backend in"
                " PYTORCH_CUDA_ALLOC_CONF"
            )
        self.device = torch.cuda.current_device() if device is None else device
        self._uploaded = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._state: tuple[int, ...] = ()
        self._streams: set[int] = set()
        self._num_chunks = 0
        self._swept = Swept(0, 0)
        self._reserve(1 << 14)

    @classmethod
    def of(cls, device: torch.device | None = None) -> CudaSweep:
        """The shared sweep of a device in this process."""
        given = None if device is None else device.index
        index = (
            torch.cuda.current_device() if given is None and torch.cuda.is_available() else given
        )
        if index not in _shared:
            _shared[index] = cls(index)
        return _shared[index]

    def __call__(self, word: int = FILL_WORD) -> Swept:
        """Fill every free block, graph pools included, without host sync.

        Raises UnreadableAllocator in a capture.

        Blocks are listed again only if the allocator changed. A server that replays graphs
        allocates nothing.
        """
        if torch.cuda.is_current_stream_capturing():
            raise UnreadableAllocator(
                "a sweep cannot run inside a graph capture; sweep before it and between replays"
            )
        # Triton launches on the current device, which a caller may have changed.
        with torch.cuda.device(self.device):
            state = _allocator_state(self.device)
            if state != self._state:
                self._list_blocks()
                # Listing may allocate the table, so the counters are read again behind it; or each
                # sweep would list again.
                self._state = _allocator_state(self.device)
            if self._num_chunks:
                with _ordered_after(self._streams, self.device):
                    fill_chunks(self._table, self._num_chunks, word)
        return self._swept

    def _list_blocks(self) -> None:
        # Stream order keeps the table for earlier fills, but the last upload must be done with the
        # host's copy.
        self._uploaded.synchronize()
        num_chunks, num_blocks, num_bytes, self._streams = list_chunks(
            self.device, self._host.numpy()
        )
        if num_chunks > len(self._host):
            # A larger table may take one of the listed blocks, so they are listed again.
            self._reserve(2 * num_chunks)
            return self._list_blocks()
        self._table[:num_chunks].copy_(self._host[:num_chunks], non_blocking=True)
        self._uploaded.record()
        self._num_chunks = num_chunks
        self._swept = Swept(num_blocks, num_bytes)

    def _reserve(self, capacity: int) -> None:
        self._host = torch.empty((capacity, 2), dtype=torch.int64, pin_memory=True)
        self._table = torch.empty((capacity, 2), dtype=torch.int64, device=self.device)


_shared: dict[int | None, CudaSweep] = {}


def fill_word(poison: Poison, site: str) -> int:
    """The 32-bit word for free memory of `site`: the pattern's, or 0 if the poison does not cover
    `site`.
    """
    return _WORDS[poison.pattern] if poison.covers(site) else 0


def _allocator_state(device: int) -> tuple[int, ...]:
    """Counters that change whenever a block of `device` is given, taken, or comes free.

    They are cheap to read.
    """
    stats = torch._C._cuda_memoryStats(device)
    return tuple(
        stats[kind]["all"][counter]
        for kind in ("allocation", "active", "segment")
        for counter in ("allocated", "freed")
    )


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
    # Work that is queued later may be given the blocks, and must not write them before the fill
    # ends.
    for stream in others:
        stream.wait_stream(current)


class CudaPoison:
    """`with torch_poison.cuda() as poison:` fills free CUDA memory, then every
    `torch.empty` of the block.

    The sweep reaches all users of torch's caching allocator, C++ and CUDA extensions included,
    once; `poison.sweep()` repeats it, for example before each step. Memory reused within the block
    is filled if torch's dispatcher allocates.
    """

    def __init__(
        self, pattern: str = "nan", device: torch.device | str | int | None = None
    ) -> None:
        self.poison = Poison(pattern, names())
        chosen = (
            torch.device("cuda", device)
            if isinstance(device, int)
            else torch.device(device or "cuda")
        )
        self._sweep = CudaSweep.of(chosen)
        self._mode: AllocationPoison | None = None

    def sweep(self) -> Swept:
        """Fill all free memory. Returns the numbers of blocks and bytes. No host sync."""
        return self._sweep(fill_word(self.poison, WORKSPACE))

    def __enter__(self) -> CudaPoison:
        self.sweep()
        self._mode = AllocationPoison(self.poison, keep=False)
        self._mode.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        assert self._mode is not None
        self._mode.__exit__(kind, value, tb)  # type: ignore[no-untyped-call]
        self._mode = None
