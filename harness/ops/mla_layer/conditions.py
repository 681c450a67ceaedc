"""The conditions that a call of `mla_layer` shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.core.conditions.model import Point
from harness.core.conditions.parts import place_of


def read(
    hidden: Any,
    seq_lens: Any,
    cos: Any,
    sin: Any,
    q_a_proj: Any,
    q_a_layernorm: Any,
    q_b_proj: Any,
    kv_a_proj: Any,
    kv_a_layernorm: Any,
    kv_b_proj: Any,
    o_proj: Any,
    *,
    num_heads: int,
    **_: Any,
) -> Iterator[Point]:
    """A point for each prompt. The tensors are those of :data:`harness.core.ops.OPS`."""
    lengths = seq_lens.tolist()
    rope = kv_a_proj.shape[0] - len(kv_a_layernorm)
    nope = len(q_b_proj) // num_heads - rope
    value = len(kv_b_proj) // num_heads - nope
    for b, length in enumerate(lengths):
        yield {
            "tokens": length,
            "padding": "some" if length < hidden.shape[1] else "none",
            "batch": len(lengths),
            "place": place_of(b, len(lengths)),
            "heads": num_heads,
            "sizes": "128, 64, 128" if (nope, rope, value) == (128, 64, 128) else "other",
        }
