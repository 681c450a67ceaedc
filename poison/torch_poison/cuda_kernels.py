"""The two Triton kernels of the poison: fill a table of chunks, and look for values that are not
finite in one pass.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

WORDS_A_PROGRAM = 4096


# Triton compiles an integer argument anew where it is 1 or a multiple of 16, unless told not to.
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
    """Fill `num_chunks` stretches of device memory with the 32-bit `word`, in one launch on the
    current stream.

    table: [capacity, 2] int64 on the device: addresses and sizes in bytes, both multiples of 512.
    The addresses are not checked; they must be free memory.
    """
    _fill_chunks[(num_chunks,)](table, word, BLOCK=4096, num_warps=8)


@triton.jit(do_not_specialize=["num_words", "exponents", "steps", "signs"])
def _note_not_finite(words, found, num_words, exponents, steps, signs, BLOCK: tl.constexpr):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    word = tl.load(words + index, mask=index < num_words, other=0).to(tl.int32)
    # Adding the lowest exponent bit to an exponent of all ones carries into the sign bit.
    odd = (((word & exponents) + steps) & signs) != 0
    if tl.max(odd.to(tl.int32), axis=0) > 0:
        tl.store(found, 1)


def _in_each_field(value: int, count: int, width: int) -> int:
    """`value` in each of `count` fields of `width` bits, as the signed 32-bit integer that a kernel
    takes.
    """
    word = sum(value << place * width for place in range(count))
    return word - (1 << 32) if word >= 1 << 31 else word


def any_not_finite(bits: Tensor, exponent: int) -> Tensor:
    """Whether an element of a contiguous CUDA tensor is not finite: [1] int32 on the device.

    No host sync.

    bits: [n] uint8, int16 or int32 view of the values; `exponent` is the mask of the exponent of
    their float type.
    """
    found = torch.zeros(1, dtype=torch.int32, device=bits.device)
    size = bits.element_size()
    words = bits
    # Narrow types are read four bytes at a time, where their memory can be.
    if size < 4 and bits.numel() * size % 4 == 0 and bits.data_ptr() % 4 == 0:
        words = bits.view(torch.int32)
    pack = words.element_size() // size
    # The lowest bit of the exponent: added to an exponent of all ones, and to no other, it carries
    # into the sign.
    step = exponent & -exponent
    fields = (_in_each_field(field, pack, 8 * size) for field in (exponent, step, exponent + step))
    if words.numel():
        grid = (triton.cdiv(words.numel(), WORDS_A_PROGRAM),)
        _note_not_finite[grid](
            words, found, words.numel(), *fields, BLOCK=WORDS_A_PROGRAM, num_warps=8
        )
    return found
