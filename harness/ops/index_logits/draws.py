"""The draws of random calls of `index_logits`. No torch here."""

from __future__ import annotations

from harness.core.draws import Draws
from harness.ops.parts.settled import settle_lengths

DRAWS = Draws(
    place=11,
    lists=("seq_lens",),
    empty={"seq_lens": 0},
    settle=settle_lengths,
    weights={"heads": (2, 4, 1, 1), "batch": (1, 6, 1), "size": (1, 2)},
)
