"""The parameters of a call of `context_attention`. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from pydantic import Field

from harness.core.call_words import DecodeValues
from harness.core.params import Count, KernelParams, Length


class ContextAttentionParams(KernelParams):
    """One call of `context_attention`: new tokens and context tokens of each request in this
    chunk.
    """

    TOGETHER: ClassVar[tuple[str, ...]] = ("query_lens", "context_lens")

    query_lens: tuple[Length, ...] = (5, 3, 4)
    context_lens: tuple[Length, ...] = (70, 17, 0)
    num_heads: Count = 4
    qk_head_dim: Count = 192
    v_head_dim: Count = 128
    values: tuple[DecodeValues, ...] = Field(
        default=(), description="scores of each request's keys; repeated"
    )

    def problems(self) -> Iterator[str]:
        queries = self.query_lens
        contexts = self.context_lens
        if len(queries) != len(contexts):
            yield (
                f"query_lens has {len(queries)} requests and context_lens {len(contexts)}; give"
                " each one of both"
            )
        if not queries or min(queries) < 1:
            yield "query_lens holds a request without new tokens"
        if not any(contexts):
            yield "context_lens has no token; give one request some context"


PARAMS = ContextAttentionParams
