"""The draws of random calls of `mla_layer`. No torch here."""

from __future__ import annotations

from random import Random

from harness.core.draws import Draws, Given, Wanted

MOST_SCORES = 2_000_000
"""Heads times pairs of tokens of a call."""


def _settle(random: Random, given: Given, first: Wanted) -> None:
    lengths = given["seq_lens"]
    if first.get("padding") == "some" and len(lengths) > 1 and lengths[0] == max(lengths):
        lengths[-1] = lengths[0] + 1
    for b in range(len(lengths) - 1, 0, -1):
        if given["num_heads"] * len(lengths) * max(lengths) ** 2 > MOST_SCORES:
            lengths[b] = min(lengths[b], 17)


DRAWS = Draws(place=14, lists=("seq_lens",), settle=_settle, weights={"sizes": (6, 1)})
