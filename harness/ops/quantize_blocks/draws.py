"""The draws of random calls of `quantize_blocks`. No torch here."""

from __future__ import annotations

from random import Random

from harness.core.draws import Draws, Given, Wanted, drawn_kernel


def _plain(rng: Random) -> Given:
    return {
        "kernel": drawn_kernel(rng, "quantize_blocks"),
        "block_format": rng.choice(["nvfp4", "mxfp4", "mxfp8"]),
        "expert_rows": [
            rng.randint(1, 9),
            *(rng.choice([0, 1, 5, 128, 129]) for _ in range(rng.randint(0, 4))),
        ],
        "orphan_rows": rng.randint(0, 40),
        "width": rng.choice([32, 64, 256]),
    }


def _settle(random: Random, given: Given, first: Wanted) -> None:
    block = 16 if given["block_format"] == "nvfp4" else 32
    given["width"] = (
        block if first.get("width") == "one" or "width" not in given else given["width"]
    )


DRAWS = Draws(
    place=7,
    plain=_plain,
    lists=("expert_rows",),
    empty={"expert_rows": 0},
    settle=_settle,
    weights={"run": (3, 6, 2, 1, 1), "experts": (2, 6, 1)},
    more={"zero_rows": (0, 0, 1)},
)
