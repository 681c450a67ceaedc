"""The draws of random calls of `map_indices`. No torch here."""

from __future__ import annotations

from random import Random

from harness.core.draws import Draws, Given, Wanted


def _settle(random: Random, given: Given, first: Wanted) -> None:
    """Lengths of requests, of one to three query tokens each, for about the tokens that are
    wanted.
    """
    numbers = {"1": 1, "2-16": random.randint(3, 9), "17+": 21}
    tokens = numbers[first.get("tokens") or random.choice(("1", "2-16", "17+"))]
    given["query_len"] = queries = 1 if tokens == 1 else random.choice((1, 1, 3))
    longest = {"1": 64, "2": 128, "3-4": 256, "5+": 330}.get(
        first.get("column", ""), random.choice((64, 130, 330))
    )
    lengths = [
        0
        if first.get("list") == "none" and tokens == 1
        else random.choice((0, 1, 5, 64, 65, 128, longest, longest))
        for _ in range(max(tokens // queries, 1))
    ]
    is_empty = first.get("list") == "none" and tokens == 1
    given["seq_lens"] = lengths if any(lengths) else [0] if is_empty else [*lengths[1:], longest]


DRAWS = Draws(place=13, settle=_settle)
