"""The parameters of a call of `align_experts`. No torch here."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from harness.core.params import Count, KernelParams, Tokens


class AlignExpertsParams(KernelParams):
    """One call of `align_experts`.

    The first `num_used` experts are chosen, the others by no token.
    """

    LIMITS: ClassVar[dict[str, str]] = {
        "num_experts_per_tok": "num_used",
        "num_used": "num_experts",
    }

    num_tokens: Tokens = 12
    num_experts: Count = 16
    num_used: Count = 16
    num_experts_per_tok: Count = 4
    block_size: Count = 16
    is_spread: bool = Field(default=False, description="the chosen experts lie among the others")

    def gives(self) -> frozenset[str]:
        return frozenset()


PARAMS = AlignExpertsParams
