"""The draws of random calls of `route_experts`. No torch here."""

from __future__ import annotations

from random import Random

from harness.core.draws import Draws, Given, Wanted, drawn_kernel


def _plain(rng: Random) -> Given:
    num_experts, num_tokens = rng.randint(1, 64), rng.randint(1, 60)
    return {
        "kernel": drawn_kernel(rng, "route_experts"),
        "num_tokens": num_tokens,
        "num_live": rng.choice([None, num_tokens, max(num_tokens // 2, 1)]),
        "num_experts": num_experts,
        "num_experts_per_tok": rng.randint(1, min(8, num_experts)),
    }


def _settle(random: Random, given: Given, first: Wanted) -> None:
    given["num_experts_per_tok"] = min(given["num_experts_per_tok"], given["num_experts"])
    live = first.get("live") or random.choice(("not given", "all", "some", "some"))
    tokens = given["num_tokens"]
    if live == "not given":
        given["num_live"] = None
    else:
        given |= {
            # The kernel that takes the number of live tokens.
            "kernel": "torch-live",
            "num_live": tokens if live == "all" or tokens < 2 else (tokens + 1) // 2,
        }


DRAWS = Draws(place=6, plain=_plain, settle=_settle, weights={"tokens": (2, 6, 3, 1)})
