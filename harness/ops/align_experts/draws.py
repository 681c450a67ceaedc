"""The draws of random calls of `align_experts`. No torch here."""

from __future__ import annotations

from random import Random

from harness.core.draws import Draws, Given, Wanted, drawn_kernel


def _plain(rng: Random) -> Given:
    num_experts = rng.randint(1, 64)
    num_used = rng.randint(1, num_experts)
    return {
        "kernel": drawn_kernel(rng, "align_experts"),
        "num_tokens": rng.randint(1, 60),
        "num_experts": num_experts,
        "num_used": num_used,
        "num_experts_per_tok": rng.randint(1, min(8, num_used)),
        "block_size": rng.choice([1, 4, 16, 64]),
    }


def _settle(random: Random, given: Given, first: Wanted) -> None:
    experts, tokens, block = given["num_experts"], given["num_tokens"], given["block_size"]
    per_token = given["num_experts_per_tok"] = min(given["num_experts_per_tok"], experts)
    run = first.get("run")
    if (
        run in ("block", "blocks", "past", "part")
        and "tokens" not in first
        and random.random() < 0.8
    ):
        # If every token chooses all the experts in use, each of them has a run as long as there are
        # tokens.
        extra = {"block": 0, "blocks": block, "past": 1, "part": -1}[run]
        given["num_tokens"] = tokens = max(1, block + extra)
    # Few used experts have long runs; all of them, few empty neighbours.
    used = random.choice((per_token, per_token + 1, experts // 2, experts))
    if run in ("block", "blocks", "past"):
        used = random.choice((per_token, per_token, max(per_token, tokens * per_token // block)))
    given |= {"num_used": min(max(used, per_token), experts), "is_spread": random.random() < 0.7}


DRAWS = Draws(
    place=8, plain=_plain, settle=_settle, weights={"tokens": (2, 6, 3, 1), "experts": (2, 6, 3, 1)}
)
