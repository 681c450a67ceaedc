"""What the rows of a call have beside their number: sizes, slots, padding among them, and
logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice

import torch
from torch import Tensor

from harness.core.ops import PAGE_SIZE

LARGE = 2.0**14
TINY = 2.0**-10
"""What a large or a tiny row is multiplied by."""
FAINT = 2.0**-33
SUBNORMAL = 2.0**-130
"""Just above 1e-10, to which kernels raise the largest element of a row; and below 2^-126, the
least normal number of float32 and bfloat16.
"""
# Past the borders by which the conditions of `route_experts` tell kinds of logits apart: 1e3 for
# large ones, 20 for one that outweighs the rest. Steps of 1/8 are exact beside 1500, so no two
# logits become equal.
LARGE_LOGIT = 1500.0
STEP = 0.125
OUTWEIGHS = 30.0
FAR_BELOW_0 = 200.0
"""What low logits lie below others: exp of them is 0 in float32 unless the largest is taken off."""


def resize_rows(x: Tensor, words: Sequence[str], tiny: float = TINY) -> None:
    """Give each row of x [T, K], bfloat16 or float32, the size of its word, in place.

    `words` are repeated.
    """
    sizes = {
        "plain": 1.0,
        "zero": 0.0,
        "tiny": tiny,
        "large": LARGE,
        "faint": FAINT,
        "subnormal": SUBNORMAL,
    }
    if words:
        x *= torch.tensor([sizes[word] for word in islice(cycle(words), len(x))], dtype=x.dtype)[
            :, None
        ]


def move_peaks(x: Tensor, words: Sequence[str]) -> None:
    """Exchange the largest element of each row of x [T, K] with the first, the last or a middle
    one, in place.

    x is bfloat16 or float32.
    """
    width = x.shape[1]
    for row, word in zip(x, islice(cycle(words), len(x) if words else 0), strict=False):
        at = {"first": 0, "inner": width // 2, "last": width - 1}[word]
        peak = int(row.abs().argmax())
        row[[at, peak]] = row[[peak, at]]


def ordered_slots(count: int, num_pages: int, order: str, generator: torch.Generator) -> Tensor:
    """`count` different slots [count] int64 of `num_pages` pages, as
    :data:`harness.core.call_words.SlotOrder` says.
    """
    scattered = torch.randperm(num_pages * PAGE_SIZE, generator=generator)[:count]
    if order == "random":
        return scattered
    last = num_pages * PAGE_SIZE - count
    first = int(torch.randint(last + 1, (1,), generator=generator))
    if order in ("from_first", "from_last"):
        first = min(first // PAGE_SIZE * PAGE_SIZE + (PAGE_SIZE - 1) * (order == "from_last"), last)
    slots = torch.arange(first, first + count)
    return slots.flip(0) if order == "falling" else slots


def padded_rows(num_rows: int, num_padded: int, place: str) -> Tensor:
    """[num_rows] bool: the rows that are padding, at the end, or the first and others between live
    rows.
    """
    rows = torch.zeros(num_rows, dtype=torch.bool)
    if place == "end":
        rows[num_rows - num_padded :] = True
    else:
        rows[torch.arange(num_padded) * num_rows // max(num_padded, 1)] = True
    return rows


def slot_mapping(slots: Tensor, is_padded: Tensor) -> Tensor:
    """[T] int64: the `slots` [n] int64 of the rows where is_padded [T] bool is not set, in order,
    and -1 elsewhere.
    """
    found = torch.full((len(is_padded),), -1, dtype=torch.int64)
    found[~is_padded] = slots
    return found


def shape_logits(logits: Tensor, words: Sequence[str]) -> None:
    """Give each token of logits [T, X] float32 the kind of its word, in place, without new ties."""
    for row, word in zip(logits, islice(cycle(words), len(logits) if words else 0), strict=False):
        ranks = row.argsort().argsort().float()
        if word == "one":
            row[row.argmax()] += OUTWEIGHS
        elif word == "large":
            row.copy_(LARGE_LOGIT + STEP * ranks)
        elif word == "flat":
            # All within 0.04, below the 0.05 that conditions call flat.
            row.copy_(ranks * (0.04 / len(row)))
        elif word == "negative":
            row -= row.max() + 1.0
        elif word == "low":
            row -= FAR_BELOW_0
