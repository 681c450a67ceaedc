"""The fields of a latch and of an event."""

from __future__ import annotations

import torch
from torch_poison.patterns import EXPONENT

NEVER = 2**63 - 1
"""The value of `first` for a slot without a hit."""
LATCH_FIELDS = 7
"""Step + 1 of the first hit (0: none), step + 1 of the last; of the first its place among all
events, its phase, the width of a row and the place of the type in DTYPES; and whether the slot was
ever scanned.
"""
EVENT_FIELDS = 3
"""Slot, step, phase."""

DTYPES = (*EXPONENT, torch.int32, torch.int64)
