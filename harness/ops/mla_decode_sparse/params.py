"""The parameters of a call of `mla_decode_sparse`. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from harness.core.call_words import DecodeValues, SparseOrder
from harness.core.ops import PAGE_SIZE
from harness.core.params import Count, FlatLayout, KernelParams, KvType, Length


class MlaDecodeSparseParams(KernelParams):
    """One call of `mla_decode_sparse`. Token i attends to `num_chosen[i]` slots, at most `topk`."""

    CACHE_TYPE: ClassVar[str] = "kv"
    page_size: ClassVar[int] = PAGE_SIZE

    kernel: str = "gather"
    kv: KvType | Literal["fp8_ds_mla"] = "bf16"
    num_chosen: tuple[Length, ...] = (16, 0, 1, 5)
    topk: Count = 16
    slot_order: tuple[SparseOrder, ...] = Field(
        default=(),
        description=(
            "each token's slots: their order, those of the token before, or -1 between them"
        ),
    )
    values: tuple[DecodeValues, ...] = Field(
        default=(), description="scores of each token's slots; repeated"
    )
    num_blocks: Annotated[int, Field(ge=2, le=4096)] = 4
    num_heads: Count = 16
    kv_lora_rank: Count = 512
    qk_rope_head_dim: Count = 64
    layout: FlatLayout = "contiguous"

    def problems(self) -> Iterator[str]:
        if self.kv == "fp8_ds_mla" and (self.kv_lora_rank, self.qk_rope_head_dim) != (512, 64):
            yield (
                "a record of fp8_ds_mla holds kv_lora_rank 512 and qk_rope_head_dim 64, no other"
                " sizes"
            )


PARAMS = MlaDecodeSparseParams
