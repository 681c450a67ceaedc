"""The conditions that a call of `merge_attn_states` shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.core.conditions.model import Point
from harness.core.conditions.parts import place_of

SIDES = ("both", "no prefix", "no suffix", "neither")


FAR_APART = 50.0
"""A difference of two lse from which the smaller side has no weight in float32."""


def read(
    prefix_out: Any,
    prefix_lse: Any,
    suffix_out: Any,
    suffix_lse: Any,
    *,
    num_tokens_with_context: int | None = None,
    **_: Any,
) -> Iterator[Point]:
    """A point for each token, by the lse of its last head."""
    tokens, num_heads, width = prefix_out.shape
    merged = tokens if num_tokens_with_context is None else num_tokens_with_context
    prefix = prefix_lse[-1].tolist()
    suffix = suffix_lse[-1].tolist()
    infinite = ("-inf", "inf")
    sides = []
    for t in range(tokens):
        empty = str(prefix[t]) in infinite, str(suffix[t]) in infinite
        # The index has one bit for each empty side.
        sides.append("copied" if t >= merged else SIDES[empty[0] + 2 * empty[1]])
    call = {
        "count": "all" if merged == tokens else "some" if merged else "none",
        "tokens": tokens,
        "heads": num_heads,
        "width": "128" if width == 128 else "other",
        "prefix": "packed" if prefix_out.is_contiguous() else "columns",
        "suffix": "packed" if suffix_out.is_contiguous() else "columns",
    }
    for t, side in enumerate(sides):
        point: Point = {**call, "side": side, "place": place_of(t, tokens)}
        point["before"] = None if t == 0 else "same" if sides[t - 1] == side else "other"
        if side == "both":
            apart = prefix[t] - suffix[t]
            point["gap"] = (
                "near"
                if abs(apart) < FAR_APART
                else "prefix above"
                if apart > 0
                else "suffix above"
            )
        elif side != "copied":
            point["sign"] = "+inf" if "inf" in (str(prefix[t]), str(suffix[t])) else "-inf"
        yield point
