"""The parameters of a call of `write_kv`. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from pydantic import Field

from harness.core.call_words import ROW_VALUES, HighBlocks, Padded, RowValues, SlotOrder
from harness.core.ops import PAGE_SIZE
from harness.core.params import Count, FlatLayout, KernelParams, KvType, Length, Tokens


class WriteKvParams(KernelParams):
    """One call of `write_kv` for `num_tokens` tokens; the last `num_padded` of them have slot
    -1.
    """

    CACHE_TYPE: ClassVar[str] = "kv"
    page_size: ClassVar[int] = PAGE_SIZE

    kv: KvType = "bf16"
    num_tokens: Tokens = 9
    num_padded: Length = 3
    large_rows: Length = Field(
        default=0, description="first tokens with values past the largest number of e4m3"
    )
    kv_lora_rank: Count = 512
    qk_rope_head_dim: Count = 64
    layout: FlatLayout = "contiguous"
    slot_order: SlotOrder = "random"
    padded_at: Padded = "end"
    high_blocks: HighBlocks = 0
    contiguous: bool = Field(
        default=True, description="false: the latents are slices of a wider tensor"
    )
    values: tuple[RowValues, ...] = ROW_VALUES

    def problems(self) -> Iterator[str]:
        if self.num_padded >= self.num_tokens:
            yield "num_padded leaves no token to store"

    @classmethod
    def settled(cls, values: dict[str, Any]) -> dict[str, Any]:
        return values | {"num_padded": min(values["num_padded"], values["num_tokens"] - 1)}


PARAMS = WriteKvParams
