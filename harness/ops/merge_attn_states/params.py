"""The parameters of a call of `merge_attn_states`. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from harness.core.params import Count, KernelParams, Length, Tokens

MergeSide = Literal[
    "both", "prefix_above", "suffix_above", "low", "equal", "no_prefix", "no_suffix", "neither"
]
"""The sides of a row: both, both with an lse 200 above the other's, both near -200, both with the
same lse, or not both.
"""


class MergeAttnStatesParams(KernelParams):
    """One call of `merge_attn_states`: the first `num_with_context` of `num_tokens` tokens have
    context.
    """

    LIMITS: ClassVar[dict[str, str]] = {
        "num_with_context": "num_tokens",
        "empty_prefix_rows": "num_with_context",
        "empty_suffix_rows": "num_with_context",
    }
    SUSCEPTIBLE: ClassVar[Mapping[str, Any]] = {"empty_prefix_rows": 2}

    num_tokens: Tokens = 12
    num_with_context: Length = 7
    empty_prefix_rows: Length = Field(
        default=0, description="rows of the context part that the lse marks empty"
    )
    empty_suffix_rows: Length = Field(
        default=0, description="how many of these rows have an empty suffix too"
    )
    empty_lse: Literal["-inf", "+inf"] = "-inf"
    lse_gap: Length = Field(
        default=0, description="how far the lse of both sides lie apart, each above in turn"
    )
    padded: Literal["none", "suffix", "both"] = Field(
        default="none",
        description=(
            "which sides are columns of a wider tensor: both in a first merge, the suffix alone in"
            " later ones"
        ),
    )
    num_heads: Count = 4
    v_head_dim: Count = 128
    sides: tuple[MergeSide, ...] = Field(
        default=(),
        description="the sides that each row with context has, in place of the counts; repeated",
    )


PARAMS = MergeAttnStatesParams
