"""The draws of random calls of `quantize_fp8`. No torch here."""

from __future__ import annotations

from random import Random

from harness.core.draws import Draws, Given, Wanted, drawn_kernel


def _plain(rng: Random) -> Given:
    num_tokens = rng.randint(1, 40)
    return {
        "kernel": drawn_kernel(rng, "quantize_fp8"),
        "num_tokens": num_tokens,
        "num_live": rng.randint(1, num_tokens),
        "width": rng.choice([64, 256, 576]),
    }


def _settle(random: Random, given: Given, first: Wanted) -> None:
    tokens = given["num_tokens"]
    live = first.get("live") or random.choice(("all", "some", "some", "one"))
    given["num_live"] = {"all": tokens, "some": max((tokens + 1) // 2, 1), "one": 1}[live]
    amax = first.get("amax") or random.choice(("plain", "plain", "large", "zero"))
    names = {
        "plain": ("plain", "zero", "tiny"),
        "large": ("plain", "zero", "tiny", "large"),
        "zero": ("zero",),
    }[amax]
    given["values"] = [
        w if w in names else random.choice(names) for w in given.get("values", ["plain"])
    ]


def _limited(given: Given) -> Given:
    """Few elements of a row are often equal, and comparing such rows proves nothing."""
    return given | {"width": max(given["width"], 16)}


DRAWS = Draws(
    place=5,
    plain=_plain,
    settle=_settle,
    limited=_limited,
    weights={"tokens": (2, 6, 3, 1)},
    more={"zero_rows": (0, 0, 1)},
)
