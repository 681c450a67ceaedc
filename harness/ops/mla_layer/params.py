"""The parameters of a call of `mla_layer`. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

from pydantic import Field

from harness.core.params import Count, KernelParams, Tokens


class MlaLayerParams(KernelParams):
    """One call of `mla_layer` on prompts of these lengths, padded to the longest one."""

    TOGETHER: ClassVar[tuple[str, ...]] = ("seq_lens",)

    seq_lens: tuple[Annotated[int, Field(ge=1, le=4096)], ...] = (5, 17, 1)
    hidden_size: Tokens = 48
    num_heads: Count = 4
    q_lora_rank: Count = 24
    kv_lora_rank: Count = 32
    qk_nope_head_dim: Count = 16
    qk_rope_head_dim: Count = 8
    v_head_dim: Count = 12

    def problems(self) -> Iterator[str]:
        if not self.seq_lens:
            yield "seq_lens has no prompt; give one length"
        if self.qk_rope_head_dim % 2:
            yield f"qk_rope_head_dim={self.qk_rope_head_dim} is odd, and rope turns pairs"


PARAMS = MlaLayerParams
