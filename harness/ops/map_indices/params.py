"""The parameters of a call of `map_indices`. No torch here."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from harness.core.params import Count, KernelParams, Length


class MapIndicesParams(KernelParams):
    """One call of `map_indices`:

    `query_len` tokens of each request, and then tokens that are not mapped.
    """

    seq_lens: tuple[Length, ...] = (130, 0, 5, 64)
    query_len: Count = 1
    topk: Count = 128
    later_tokens: Length = Field(
        default=2, description="tokens of the batch behind the mapped ones, such as prompts'"
    )
    missing: Literal["last", "scattered"] = Field(
        default="scattered", description="where a list holds -1"
    )
    table_pad: Annotated[int, Field(ge=1, le=64)] = 3
    high_blocks: Annotated[int, Field(ge=0, le=2**24)] = Field(
        default=0, description="unused blocks below the blocks of the requests"
    )

    def gives(self) -> frozenset[str]:
        return super().gives() - {"floats"}


PARAMS = MapIndicesParams
