"""How drawn parameters of several ops are made legal. No torch here."""

from __future__ import annotations

from random import Random

from harness.core.draws import Given, Wanted


def settle_padding(random: Random, given: Given, first: Wanted) -> None:
    """Tokens without a slot, counted among the tokens."""
    if (first.get("slot"), first.get("before")) == ("last", "same page"):
        # Only scattered slots show that, and few of them.
        given |= {"num_tokens": 150, "slot_order": "random"}
    tokens = given["num_tokens"]
    padding = first.get("padding") or random.choice(("none", "end", "between", "between"))
    if first.get("row") == "padded" and padding == "none":
        padding = "end" if first.get("place") == "last" else "between"
    padded = (
        0 if padding == "none" or tokens == 1 else random.choice((1, tokens // 3, tokens // 2)) or 1
    )
    given |= {"num_padded": padded, "padded_at": "end" if padding == "none" else padding}


def settle_lengths(random: Random, given: Given, first: Wanted) -> None:
    """At least one request has tokens."""
    if not any(given["seq_lens"]):
        given["seq_lens"][-1] = 70
