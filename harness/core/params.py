"""The parameters of a case: the base of all models, and the parameters of a call of one op.

Every field may be an axis of a scenario's matrix. The validators of a model decide what is legal. A case with illegal
parameters cannot be made, so a failure is never the fault of the case.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from harness.core.ops import latent_rank

KvType = Literal["fp32", "bf16", "fp8_e4m3"]
Length = Annotated[int, Field(ge=0, le=100_000)]
Count = Annotated[int, Field(ge=1, le=4096)]

ILLEGAL = "illegal"
"""The type of pydantic's error for parameters that do not go together."""
STORED: dict[str, Any] = {"stored": True}
"""The validation context for stored runs: it switches off rules, which may be newer than the run."""


class Record(BaseModel):
    """A frozen value that refuses unknown fields; `model_dump_json` and `model_validate_json` round-trip it."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Params(Record):
    """The parameters of one kind of case."""

    LIMITS: ClassVar[dict[str, str]] = {}
    """Counts that may not exceed another: a parameter -> the parameter that bounds it."""

    def problems(self) -> Iterator[str]:
        """Yield a sentence for each thing that is wrong with the combination of these values."""
        for name, bound in self.LIMITS.items():
            value, most = getattr(self, name), getattr(self, bound)
            if value is not None and most is not None and value > most:
                yield f"{name} is more than {bound}"

    @model_validator(mode="after")
    def _legal(self, info: ValidationInfo) -> Self:
        problem = None if info.context is STORED else next(self.problems(), None)
        if problem is not None:
            raise PydanticCustomError(ILLEGAL, "{sentence}", {"sentence": problem})
        return self

    @classmethod
    def settled(cls, values: dict[str, Any]) -> dict[str, Any]:
        """`values` with each count of LIMITS reduced to its bound."""
        for name, bound in cls.LIMITS.items():
            if values[name] is not None and values[bound] is not None:
                values = values | {name: min(values[name], values[bound])}
        return values

    @property
    def has_graph(self) -> bool:
        """Whether the case captures a graph."""
        return getattr(self, "graph", "none") != "none"

    @property
    def own_timeout(self) -> float | None:
        """The time limit of the case in seconds, or None if the run decides it."""
        return cast("float | None", getattr(self, "timeout_seconds", None))

    @property
    def num_gpus(self) -> int:
        """GPUs that the processes of the case need; 1 also for a case that uses none."""
        return 1

    def gives(self) -> frozenset[str]:
        """What the case offers to oracles, in the words of `OracleSpec.needs`."""
        return frozenset({"graph"} if self.has_graph else ())

    def recorded(self) -> Self:
        """The parameters for a run that only looks for the first NaN."""
        return self


def rank_problem(kv_lora_rank: int, rope_dim: int) -> Iterator[str]:
    """Kernels know only D = R + E, so R must follow from D."""
    if latent_rank(kv_lora_rank + rope_dim) != kv_lora_rank:
        yield (
            f"kv_lora_rank {kv_lora_rank} is not the largest power of two below kv_lora_rank + qk_rope_head_dim "
            f"({kv_lora_rank + rope_dim})"
        )


class KernelParams(Params):
    """Common to all ops: the kernel under test."""

    kernel: str = "torch"


class MlaDecodeParams(KernelParams):
    """One call of `mla_decode`."""

    kernel: str = "tiled"
    kv: KvType = "bf16"
    seq_lens: tuple[Length, ...] = (1, 63, 64, 65, 130)
    query_len: Count = 1
    num_heads: Count = 16
    kv_lora_rank: Count = 512
    qk_rope_head_dim: Count = 64
    num_spare_blocks: int = Field(default=4, ge=1, description="pages that belong to no request")
    table_pad: Annotated[int, Field(ge=0, le=64)] = 3
    planned: bool = Field(default=True, description="pass a plan made by the kernel's own mla_decode_plan")
    contiguous_q: bool = Field(default=True, description="false: q is a slice of a wider tensor")
    window: Count | None = Field(default=None, description="keys that a query sees at most, for kernels that can")
    page_stride: Annotated[int, Field(ge=0, le=2**32)] = Field(
        default=0, description="elements from page to page; 0: one behind the other"
    )

    def problems(self) -> Iterator[str]:
        if not any(self.seq_lens):
            yield "seq_lens has no live request; give one a length"
        if any(0 < length < self.query_len for length in self.seq_lens):
            yield (
                f"seq_lens holds a length below query_len {self.query_len}; the query tokens are part of a request's "
                "length"
            )
        yield from rank_problem(self.kv_lora_rank, self.qk_rope_head_dim)


class MlaDecodeSparseParams(KernelParams):
    """One call of `mla_decode_sparse`. Token i attends to `num_chosen[i]` slots, at most `topk`."""

    kernel: str = "gather"
    kv: KvType = "bf16"
    num_chosen: tuple[Length, ...] = (16, 0, 1, 5)
    topk: Count = 16
    num_blocks: Annotated[int, Field(ge=2, le=4096)] = 4
    num_heads: Count = 16
    kv_lora_rank: Count = 512
    qk_rope_head_dim: Count = 64


class ContextAttentionParams(KernelParams):
    """One call of `context_attention`: new tokens and context tokens of each request in this chunk."""

    query_lens: tuple[Length, ...] = (5, 3, 4)
    context_lens: tuple[Length, ...] = (70, 17, 0)
    num_heads: Count = 4
    qk_head_dim: Count = 192
    v_head_dim: Count = 128

    def problems(self) -> Iterator[str]:
        queries, contexts = self.query_lens, self.context_lens
        if len(queries) != len(contexts):
            yield f"query_lens has {len(queries)} requests and context_lens {len(contexts)}; give each one of both"
        if not queries or min(queries) < 1:
            yield "query_lens holds a request without new tokens"
        if not any(contexts):
            yield "context_lens has no token; give one request some context"


class MergeAttnStatesParams(KernelParams):
    """One call of `merge_attn_states`: the first `num_with_context` of `num_tokens` tokens have context."""

    LIMITS: ClassVar[dict[str, str]] = {
        "num_with_context": "num_tokens",
        "empty_prefix_rows": "num_with_context",
        "empty_suffix_rows": "num_with_context",
    }

    num_tokens: Count = 12
    num_with_context: Length = 7
    empty_prefix_rows: Length = Field(default=0, description="rows of the context part that the lse marks empty")
    empty_suffix_rows: Length = Field(default=0, description="how many of these rows have an empty suffix too")
    empty_lse: Literal["-inf", "+inf"] = "-inf"
    padded: Literal["none", "suffix", "both"] = Field(
        default="none",
        description="which sides are columns of a wider tensor: both in a first merge, the suffix alone in later ones",
    )
    num_heads: Count = 4
    v_head_dim: Count = 128


class WriteKvParams(KernelParams):
    """One call of `write_kv` for `num_tokens` tokens; the last `num_padded` of them have slot -1."""

    kv: KvType = "bf16"
    num_tokens: Count = 9
    num_padded: Length = 3
    kv_lora_rank: Count = 512
    qk_rope_head_dim: Count = 64

    def problems(self) -> Iterator[str]:
        if self.num_padded >= self.num_tokens:
            yield "num_padded leaves no token to store"

    @classmethod
    def settled(cls, values: dict[str, Any]) -> dict[str, Any]:
        return values | {"num_padded": min(values["num_padded"], values["num_tokens"] - 1)}


class QuantizeFp8Params(KernelParams):
    """One call of `quantize_fp8` on `num_tokens` rows; the first `num_live` of them are live."""

    LIMITS: ClassVar[dict[str, str]] = {"num_live": "num_tokens"}

    num_tokens: Count = 8
    num_live: Annotated[int, Field(ge=1, le=100_000)] = 5
    width: Count = 256


class RouteExpertsParams(KernelParams):
    """One call of `route_experts`. Tokens from `num_live` on are padding."""

    LIMITS: ClassVar[dict[str, str]] = {"num_experts_per_tok": "num_experts", "num_live": "num_tokens"}

    num_tokens: Count = 12
    num_live: Count | None = Field(default=None, description="tokens that are live; all when left out")
    num_experts: Count = 16
    num_experts_per_tok: Count = 4

    def gives(self) -> frozenset[str]:
        return frozenset({"experts"})


class QuantizeBlocksParams(KernelParams):
    """One call of `quantize_blocks`: rows of `expert_rows` experts one after another, then rows of no expert."""

    block_format: Literal["nvfp4", "mxfp4", "mxfp8"] = "nvfp4"
    expert_rows: tuple[Length, ...] = (5,)
    orphan_rows: Length = Field(default=3, description="rows behind the rows of all experts, which belong to none")
    width: Count = 64

    BLOCKS: ClassVar[dict[str, int]] = {"nvfp4": 16, "mxfp4": 32, "mxfp8": 32}
    """Elements of a block, as in :mod:`harness.kernels.ops.block_formats`, which needs torch."""

    def problems(self) -> Iterator[str]:
        block = self.BLOCKS[self.block_format]
        if self.width % block:
            yield f"width {self.width} is no multiple of the block of {block}"
        if not any(self.expert_rows):
            yield "expert_rows has no row; give one expert some"


KERNEL_PARAMS: dict[str, type[KernelParams]] = {
    "mla_decode": MlaDecodeParams,
    "mla_decode_sparse": MlaDecodeSparseParams,
    "context_attention": ContextAttentionParams,
    "merge_attn_states": MergeAttnStatesParams,
    "write_kv": WriteKvParams,
    "quantize_fp8": QuantizeFp8Params,
    "route_experts": RouteExpertsParams,
    "quantize_blocks": QuantizeBlocksParams,
}
"""The parameters of a kernel case, by op. A planner is judged through its decode."""
