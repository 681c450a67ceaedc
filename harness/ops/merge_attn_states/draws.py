"""The draws of random calls of `merge_attn_states`. No torch here."""

from __future__ import annotations

from random import Random

from harness.core.draws import Draws, Given, Wanted, drawn_kernel


def _plain(rng: Random) -> Given:
    num_tokens = rng.randint(1, 40)
    num_with_context = rng.randint(0, num_tokens)
    empty_prefix_rows = rng.randint(0, num_with_context)
    return {
        "kernel": drawn_kernel(rng, "merge_attn_states"),
        "num_tokens": num_tokens,
        "num_with_context": num_with_context,
        "empty_prefix_rows": empty_prefix_rows,
        "empty_suffix_rows": rng.choice([0, 0, empty_prefix_rows // 2, empty_prefix_rows]),
        "padded": rng.choice(["none", "suffix", "both"]),
        "empty_lse": rng.choice(["-inf", "+inf"]),
        "num_heads": rng.randint(1, 6),
    }


def _settle(random: Random, given: Given, first: Wanted) -> None:
    tokens = given["num_tokens"]
    count = first.get("count") or random.choice(("none", "some", "some", "all", "all"))
    if "count" not in first and {"sign", "gap"} & set(first):
        # Only merged rows have a sign or a gap, and the last row is merged only if all are.
        count = "all" if first.get("place") in ("last", "only") else "some"
    some = random.choice((1, tokens - 1, (tokens + 1) // 2)) or 1
    given["num_with_context"] = {"none": 0, "some": some, "all": tokens}[count]


DRAWS = Draws(
    place=3,
    plain=_plain,
    settle=_settle,
    weights={"tokens": (2, 6, 3, 1), "width": (6, 1)},
    more={"lse_gap": (0, 0, 1, 200)},
)
