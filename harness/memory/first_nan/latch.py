"""The fields of a latch and of an event, and the bits of a value that is not finite."""

from __future__ import annotations

import torch

NEVER = 2**63 - 1
"""The value of `first` for a slot without a hit."""
LATCH_FIELDS = 7
"""Step + 1 of the first hit (0: none), step + 1 of the last; of the first its place among all events, its phase, the
width of a row and the place of the type in DTYPES; and whether the slot was ever scanned."""
EVENT_FIELDS = 3
"""Slot, step, phase."""

EXPONENT = {
    torch.float8_e4m3fn: 0x7F,
    torch.float8_e5m2: 0x7C,
    torch.bfloat16: 0x7F80,
    torch.float16: 0x7C00,
    torch.float32: 0x7F80_0000,
    torch.float64: 0x7FF0_0000_0000_0000,
}
"""Bits that are all set in what is not finite; e4m3fn has no infinity, and its only NaN has all bits but the sign."""

DTYPES = (*EXPONENT, torch.int32, torch.int64)


def exponent_mask(dtype: torch.dtype) -> int:
    """The bits that tell what is not finite; 0 for integers, which are judged by their range."""
    return EXPONENT.get(dtype, 0)
