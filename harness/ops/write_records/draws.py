"""The draws of random calls of `write_records`. No torch here."""

from __future__ import annotations

from random import Random
from typing import get_args

from harness.core.call_words import RecordFormat
from harness.core.draws import Draws, Given, Wanted, drawn_kernel
from harness.core.ops import PAGE_SIZE
from harness.ops.parts.settled import settle_padding


def _plain(rng: Random) -> Given:
    return {
        "kernel": drawn_kernel(rng, "write_records"),
        "kv": rng.choice(get_args(RecordFormat)),
        "layers": rng.choice([1, 1, 2, 3]),
        "num_tokens": rng.choice([1, PAGE_SIZE, rng.randint(1, 150)]),
        "num_padded": rng.randint(0, 9),
    }


def _settle(random: Random, given: Given, first: Wanted) -> None:
    """Tokens without a slot, counted beside the others."""
    settle_padding(random, given, first)
    given["num_tokens"] -= given["num_padded"]


DRAWS = Draws(
    place=9, plain=_plain, settle=_settle, weights={"tokens": (2, 6, 3, 1), "block": (3, 1)}
)
