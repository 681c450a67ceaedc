"""The draws of random calls of `write_kv`. No torch here."""

from __future__ import annotations

from random import Random
from typing import get_args

from harness.core.draws import KV_TYPES, Draws, Given, drawn_kernel
from harness.core.params import FlatLayout
from harness.ops.parts.settled import settle_padding


def _plain(rng: Random) -> Given:
    num_tokens = rng.randint(1, 150)
    return {
        "kernel": drawn_kernel(rng, "write_kv"),
        "kv": rng.choice(KV_TYPES),
        "num_tokens": num_tokens,
        "num_padded": rng.randint(0, num_tokens - 1),
    }


DRAWS = Draws(
    place=4,
    plain=_plain,
    settle=settle_padding,
    weights={"tokens": (2, 6, 3, 1), "latent": (8, 1), "block": (4, 1)},
    more={"layout": get_args(FlatLayout), "large_rows": (0, 0, 1)},
)
