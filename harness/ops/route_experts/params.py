"""The parameters of a call of `route_experts`. No torch here."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from harness.core.params import Count, KernelParams, Tokens


class RouteExpertsParams(KernelParams):
    """One call of `route_experts`. Tokens from `num_live` on are padding."""

    LIMITS: ClassVar[dict[str, str]] = {
        "num_experts_per_tok": "num_experts",
        "num_live": "num_tokens",
    }

    num_tokens: Tokens = 12
    num_live: Count | None = Field(
        default=None, description="tokens that are live; all when left out"
    )
    num_experts: Count = 16
    num_experts_per_tok: Count = 4
    values: tuple[Literal["plain", "one", "large", "flat", "negative", "low"], ...] = Field(
        default=(), description="logits of each token, without ties; repeated for more tokens"
    )

    def gives(self) -> frozenset[str]:
        return super().gives() | {"experts"}


PARAMS = RouteExpertsParams
