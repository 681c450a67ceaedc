"""The draws of random calls of `context_attention`. No torch here."""

from __future__ import annotations

from random import Random

from harness.core.draws import Draws, Given, Wanted, drawn_kernel, drawn_lengths

MOST_ELEMENTS = 400_000
"""Elements of the queries and keys of a call."""


def _plain(rng: Random) -> Given:
    query_lens = drawn_lengths(rng, 1, 40, most=4)
    context_lens = [rng.randint(0, 200) for _ in query_lens]
    return {
        "kernel": drawn_kernel(rng, "context_attention"),
        "query_lens": query_lens,
        "context_lens": context_lens if any(context_lens) else [9, *context_lens[1:]],
        "num_heads": rng.randint(1, 6),
    }


def _settle(random: Random, given: Given, first: Wanted) -> None:
    queries, contexts = given["query_lens"], given["context_lens"]
    if not any(contexts):
        # The parameters refuse a call without any context.
        contexts[-1] = 64
    for b in random.sample(range(len(queries)), len(queries)):
        # Long units of many heads cost more than they show.
        if (
            given["num_heads"] * (sum(queries) + sum(contexts)) * given["qk_head_dim"]
            > MOST_ELEMENTS
            and b
        ):
            queries[b], contexts[b] = (
                min(queries[b], random.choice((1, 2, 16))),
                min(contexts[b], 2),
            )


DRAWS = Draws(
    place=2,
    plain=_plain,
    lists=("query_lens", "context_lens"),
    empty={"context_lens": 0},
    settle=_settle,
    weights={"queries": (4, 6, 2, 3, 1, 1), "context": (2, 3, 5, 2, 1, 1, 1), "sizes": (6, 1)},
)
