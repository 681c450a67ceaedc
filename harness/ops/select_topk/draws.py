"""The draws of random calls of `select_topk`. No torch here."""

from __future__ import annotations

from random import Random

from harness.core.draws import Draws, Given, Wanted


def _settle(random: Random, given: Given, first: Wanted) -> None:
    """As many positions as a request has, now and then: the last rank is where kernels differ."""
    if not any(given["seq_lens"]):
        given["seq_lens"][-1] = 17
    lengths = [n for n in given["seq_lens"] if n]
    if "topk" not in first and (first.get("rank") == "at" or random.random() < 0.4):
        given["topk"] = random.choice(lengths)


DRAWS = Draws(
    place=12,
    lists=("seq_lens",),
    empty={"seq_lens": 0},
    settle=_settle,
    weights={"batch": (1, 6, 2)},
)
