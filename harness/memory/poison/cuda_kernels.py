"""The two Triton kernels of the poison: fill a table of chunks, and classify every element of a tensor in one pass."""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

CLASSES = 68
"""Counters of a scan: 0..63 sentinels by site tag, then UNTAGGED, OTHER_NAN, INF and CANONICAL."""
UNTAGGED, OTHER_NAN, INF, CANONICAL = 64, 65, 66, 67
WORDS_A_PROGRAM = 4096


@triton.jit(do_not_specialize=["word"])
def _fill_chunks(table, word, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    # The allocator hands out multiples of 512 bytes; saying so lets the stores be 16 bytes wide.
    address = tl.multiple_of(tl.load(table + 2 * pid), 512)
    num_words = tl.multiple_of(tl.load(table + 2 * pid + 1) // 4, 128)
    target = address.to(tl.pointer_type(tl.int32))
    for start in range(0, num_words, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        tl.store(target + offsets, tl.full((BLOCK,), 0, tl.int32) + word, mask=offsets < num_words)


def fill_chunks(table: Tensor, num_chunks: int, word: int) -> None:
    """Fill `num_chunks` stretches of device memory with the 32-bit `word`, in one launch on the current stream.

    table: [capacity, 2] int64 on the device: addresses and sizes in bytes, both multiples of 512. The addresses are
    not checked; they must be free memory.
    """
    _fill_chunks[(num_chunks,)](table, word, BLOCK=4096, num_warps=8)


_MASKS = ["exponent", "mantissa", "sentinel", "exponents", "steps", "signs"]


@triton.jit(do_not_specialize=["num_words", "num_elements", *_MASKS])
def _classify(
    words, counts, first, num_words, num_elements, exponent, mantissa, sentinel, exponents, steps, signs,
    PACK: tl.constexpr, WIDTH: tl.constexpr, HAS_TAG: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    word = tl.load(words + index, mask=index < num_words, other=0).to(tl.int32)
    # Adding the lowest exponent bit to an exponent of all ones carries into the sign bit.
    odd = (((word & exponents) + steps) & signs) != 0
    if tl.max(odd.to(tl.int32), axis=0) > 0:
        ones = mantissa | exponent | (mantissa + exponent + 1)
        for part in tl.static_range(PACK):
            value = word >> (part * WIDTH)
            bad = (value & exponent) == exponent
            # OTHER_NAN, unless the mantissa is empty (Inf) or the payload is a sentinel's.
            kind = tl.where((value & mantissa) == 0, 66, 65)
            # What arithmetic makes: all bits of the mantissa on NVIDIA GPUs, the highest alone on x86.
            made = ((value & mantissa) == mantissa) | ((value & mantissa) == ((mantissa + 1) >> 1))
            kind = tl.where(made, 67, kind)
            if HAS_TAG:
                # The sign is part of the pattern: a sentinel stands verbatim.
                kind = tl.where((value & ones & ~0x3F) == sentinel, value & 0x3F, kind)
            else:
                kind = tl.where((value & ones) == ones, 64, kind)
            element = index * PACK + part
            lowest = tl.min(tl.where(bad, kind, 127), axis=0)
            highest = tl.max(tl.where(bad, kind, -1), axis=0)
            if lowest == highest:
                # The common case, a stretch of one poison: one atomic for the block instead of one an element.
                tl.atomic_add(counts + lowest, tl.sum(bad.to(tl.int64), axis=0))
                tl.atomic_min(first + lowest, tl.min(tl.where(bad, element, num_elements), axis=0))
            elif highest >= 0:
                tl.atomic_add(counts + kind, tl.full((BLOCK,), 1, tl.int64), mask=bad)
                tl.atomic_min(first + kind, element, mask=bad)


def _in_each_field(value: int, count: int, width: int) -> int:
    """`value` in each of `count` fields of `width` bits, as the signed 32-bit integer that a kernel takes."""
    word = sum(value << place * width for place in range(count))
    return word - (1 << 32) if word >= 1 << 31 else word


def classify(bits: Tensor, *, exponent: int, mantissa: int, sentinel: int | None) -> tuple[Tensor, Tensor]:
    """Count the non-finite elements of a contiguous CUDA tensor by class, and find the first of each.

    bits: [n] uint8, int16 or int32 view of the values; `exponent` and `mantissa` are the masks of its float type,
    `sentinel` the sentinel without its tag, or None for a type without room for tags.
    Returns (counts[68], first[68]) int64 on the device; `first` is n where a class is empty. No host sync.
    """
    counts = torch.zeros(CLASSES, dtype=torch.int64, device=bits.device)
    first = torch.full((CLASSES,), bits.numel(), dtype=torch.int64, device=bits.device)
    if not bits.numel():
        return counts, first
    size, words = bits.element_size(), bits
    # Narrow types are read four bytes at a time, where their memory can be.
    if size < 4 and bits.numel() * size % 4 == 0 and bits.data_ptr() % 4 == 0:
        words = bits.view(torch.int32)
    pack, step = words.element_size() // size, exponent & -exponent
    _classify[(triton.cdiv(words.numel(), WORDS_A_PROGRAM),)](
        words, counts, first, words.numel(), bits.numel(), exponent, mantissa, sentinel or 0,
        *(_in_each_field(field, pack, 8 * size) for field in (exponent, step, exponent + step)),
        PACK=pack, WIDTH=8 * size, HAS_TAG=sentinel is not None, BLOCK=WORDS_A_PROGRAM, num_warps=8,
    )  # fmt: skip
    return counts, first
