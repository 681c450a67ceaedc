"""The draws of random calls of `mla_decode_sparse`. No torch here."""

from __future__ import annotations

from random import Random
from typing import get_args

from harness.core.draws import KV_TYPES, Draws, Given, Wanted, coin, drawn_kernel
from harness.core.params import FlatLayout

WIDEST = 2048
"""The slots of a token in DeepSeek V3.2."""
WIDE = 0.05
"""How often a call has so many."""
PACKED = {"kv": "fp8_ds_mla", "kv_lora_rank": 512, "qk_rope_head_dim": 64}
"""The only sizes of records of V3.2."""


def _plain(rng: Random) -> Given:
    topk = rng.randint(1, 70)
    num_chosen = [rng.randint(0, topk) for _ in range(rng.randint(1, 6))]
    return {
        "kernel": drawn_kernel(rng, "mla_decode_sparse"),
        "kv": rng.choice(KV_TYPES),
        "num_chosen": num_chosen if any(num_chosen) else [1, *num_chosen[1:]],
        "topk": topk,
        "num_blocks": rng.randint(3, 6),
        "num_heads": rng.choice([1, 4, 16]),
        "kv_lora_rank": rng.choice([64, 512]),
        "qk_rope_head_dim": rng.choice([16, 64]),
    }


def _rare(rng: Random) -> Given | None:
    """Now and then, a token or more chooses WIDEST slots.

    Block 0 has no owner, so 33 blocks have as many.
    """
    if rng.random() >= WIDE:
        return None
    num_chosen = [
        WIDEST,
        *rng.choices([0, 1, WIDEST - 1, WIDEST, rng.randint(2, WIDEST)], k=rng.randint(0, 2)),
    ]
    rng.shuffle(num_chosen)
    given = {"num_chosen": num_chosen, "topk": WIDEST, "num_blocks": rng.randint(33, 64)}
    return _plain(rng) | given | (PACKED if coin(rng) else {})


def _settle(random: Random, given: Given, first: Wanted) -> None:
    most = max(given["num_chosen"])
    if not most:
        # A call in which no token has a slot would show nothing.
        given["num_chosen"][-1] = most = 1
    if first.get("list") == "full" or "width" not in first:
        given["topk"] = (
            most
            if first.get("list") == "full" or random.random() < 0.3
            else max(most, given["topk"])
        )
    given["num_chosen"] = [min(n, given["topk"]) for n in given["num_chosen"]]
    if given["kv"] == "fp8_ds_mla":
        given |= {"kv_lora_rank": 512, "qk_rope_head_dim": 64}


DRAWS = Draws(
    place=1,
    plain=_plain,
    rare=_rare,
    lists=("num_chosen",),
    empty={"num_chosen": 0},
    settle=_settle,
    weights={
        "chosen": (1, 2, 5, 1, 1),
        "latent": (10, 1),
        "kv": (3, 3, 3, 1),
        "tokens": (2, 6, 2),
        "block": (5, 1),
    },
    more={"layout": get_args(FlatLayout)},
)
