"""The draws of random calls of `read_records`. No torch here."""

from __future__ import annotations

from random import Random
from typing import get_args

from harness.core.call_words import RecordFormat
from harness.core.draws import Draws, Given, drawn_kernel, drawn_lengths
from harness.ops.parts.settled import settle_lengths


def _plain(rng: Random) -> Given:
    seq_lens = drawn_lengths(rng, 0, 150, most=5)
    return {
        "kernel": drawn_kernel(rng, "read_records"),
        "kv": rng.choice(get_args(RecordFormat)),
        "layers": rng.choice([1, 1, 2, 3]),
        "seq_lens": seq_lens if any(seq_lens) else [*seq_lens, 7],
    }


DRAWS = Draws(
    place=10,
    plain=_plain,
    lists=("seq_lens",),
    empty={"seq_lens": 0},
    settle=settle_lengths,
    weights={"block": (3, 1)},
)
