"""The two Triton kernels of the poison: fill a table of chunks, and classify every element of a tensor in one pass."""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl

CLASSES = 67
"""Counters of a scan: 0..63 sentinels by site tag, then UNTAGGED, OTHER_NAN and INF."""
UNTAGGED, OTHER_NAN, INF = 64, 65, 66


@triton.jit
def _fill_chunks(table, capacity, word, CHUNK_WORDS: tl.constexpr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    # The allocator hands out multiples of 512 bytes; saying so lets the stores be 16 bytes wide.
    address = tl.multiple_of(tl.load(table + pid), 512)
    num_words = tl.multiple_of(tl.load(table + capacity + pid) // 4, 128)
    target = address.to(tl.pointer_type(tl.int32))
    for start in range(0, CHUNK_WORDS, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        tl.store(target + offsets, tl.full((BLOCK,), 0, tl.int32) + word, mask=offsets < num_words)


def fill_chunks(table: torch.Tensor, num_chunks: int, word: int, chunk_bytes: int) -> None:
    """Fill `num_chunks` stretches of device memory with the 32-bit `word`, in one launch on the current stream.

    table: [2, capacity] int64 on the device: row 0 addresses, row 1 sizes in bytes, both multiples of 512 and no
    size above `chunk_bytes`. Nothing is checked: the addresses must be memory that nobody owns.
    """
    _fill_chunks[(num_chunks,)](table, table.shape[1], word, CHUNK_WORDS=chunk_bytes // 4, BLOCK=4096, num_warps=8)


@triton.jit
def _classify(
    bits, counts, first, num_elements, exponent, mantissa, sentinel, ones,
    HAS_TAG: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    start = tl.program_id(0).to(tl.int64) * BLOCK
    offsets = start + tl.arange(0, BLOCK)
    word = tl.load(bits + offsets, mask=offsets < num_elements, other=0).to(tl.int32)
    bad = (word & exponent) == exponent
    if tl.max(bad.to(tl.int32), axis=0) > 0:
        # OTHER_NAN, unless the mantissa is empty (Inf) or the payload is a sentinel's.
        kind = tl.where((word & mantissa) == 0, 66, 65)
        if HAS_TAG:  # noqa: SIM108 - a branch at compile time
            kind = tl.where((word & ~0x3F) == sentinel, word & 0x3F, kind)
        else:
            kind = tl.where((word & ones) == ones, 64, kind)
        lowest = tl.min(tl.where(bad, kind, 127), axis=0)
        highest = tl.max(tl.where(bad, kind, -1), axis=0)
        if lowest == highest:
            # The common case, a stretch of one poison: one atomic for the block instead of one an element.
            tl.atomic_add(counts + lowest, tl.sum(bad.to(tl.int64), axis=0))
            tl.atomic_min(first + lowest, tl.min(tl.where(bad, offsets, num_elements), axis=0))
        else:
            tl.atomic_add(counts + kind, tl.full((BLOCK,), 1, tl.int64), mask=bad)
            tl.atomic_min(first + kind, offsets, mask=bad)


def classify(
    bits: torch.Tensor, *, exponent: int, mantissa: int, sentinel: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Count the non-finite elements of a contiguous CUDA tensor by class, and find the first of each.

    bits: [n] uint8, int16 or int32 view of the values; `exponent` and `mantissa` are the masks of its float type,
    `sentinel` the tagged NaN pattern without its tag, or None for types whose NaN has no room for one.
    Returns (counts[67], first[67]) int64 on the device; `first` is n where a class is empty. No host sync.
    """
    counts = torch.zeros(CLASSES, dtype=torch.int64, device=bits.device)
    first = torch.full((CLASSES,), bits.numel(), dtype=torch.int64, device=bits.device)
    block = 16384 // bits.element_size()
    if bits.numel():
        _classify[(triton.cdiv(bits.numel(), block),)](
            bits, counts, first, bits.numel(), exponent, mantissa, sentinel or 0, (1 << 8 * bits.element_size()) - 1,
            HAS_TAG=sentinel is not None, BLOCK=block, num_warps=8,
        )  # fmt: skip
    return counts, first
