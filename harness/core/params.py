"""The parameters of a case, one model for each system. Every field may be an axis of a scenario's matrix."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from harness.core.records import Record

KvType = Literal["fp32", "bf16", "fp8_e4m3"]
LayerKind = Literal["mla", "kda", "window", "sparse"]
Length = Annotated[int, Field(ge=0, le=100_000)]
Count = Annotated[int, Field(ge=1, le=4096)]


class KernelParams(Record):
    """Common to all ops: which kernel is judged, on which device."""

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


class MlaDecodeSparseParams(KernelParams):
    """One call of `mla_decode_sparse`: how many slots each token attends to, of at most `topk`."""

    kernel: str = "gather"
    kv: KvType = "bf16"
    num_chosen: tuple[Length, ...] = (16, 0, 1, 5)
    topk: Count = 16
    num_blocks: Annotated[int, Field(ge=2, le=4096)] = 4
    num_heads: Count = 16
    kv_lora_rank: Count = 512
    qk_rope_head_dim: Count = 64


class ContextAttentionParams(KernelParams):
    """One call of `context_attention`: per request, its new tokens and its context tokens in this chunk."""

    query_lens: tuple[Length, ...] = (5, 3, 4)
    context_lens: tuple[Length, ...] = (70, 17, 0)
    num_heads: Count = 4
    qk_head_dim: Count = 192
    v_head_dim: Count = 128


class MergeAttnStatesParams(KernelParams):
    """One call of `merge_attn_states`: the first `num_with_context` of `num_tokens` tokens have context."""

    num_tokens: Count = 12
    num_with_context: Length = 7
    empty_prefix_rows: Length = Field(default=0, description="rows within the context part whose lse marks them empty")
    empty_suffix_rows: Length = Field(default=0, description="of the same rows, how many have an empty suffix too")
    empty_lse: Literal["-inf", "+inf"] = "-inf"
    padded: Literal["none", "suffix", "both"] = Field(
        default="none",
        description="which sides are columns of a wider tensor: both in a first merge, the suffix alone in later ones",
    )
    num_heads: Count = 4
    v_head_dim: Count = 128


class WriteKvParams(KernelParams):
    """One call of `write_kv` for `num_tokens` tokens, of which the last `num_padded` have slot -1."""

    kv: KvType = "bf16"
    num_tokens: Count = 9
    num_padded: Length = 3
    kv_lora_rank: Count = 512
    qk_rope_head_dim: Count = 64


class QuantizeFp8Params(KernelParams):
    """One call of `quantize_fp8` on `num_tokens` rows of which the first `num_live` are live."""

    num_tokens: Count = 8
    num_live: Length = 5
    width: Count = 256


class RouteExpertsParams(KernelParams):
    """One call of `route_experts`, whose tokens from `num_live` on are padding."""

    num_tokens: Count = 12
    num_live: Count | None = Field(default=None, description="tokens that are live; all when left out")
    num_experts: Count = 16
    num_experts_per_tok: Count = 4


class QuantizeBlocksParams(KernelParams):
    """One call of `quantize_blocks`: rows of `expert_rows` experts one after another, then rows of none."""

    block_format: Literal["nvfp4", "mxfp4", "mxfp8"] = "nvfp4"
    expert_rows: tuple[Length, ...] = (5,)
    orphan_rows: Length = Field(default=3, description="rows behind those of all experts, which are nobody's")
    width: Count = 64


class ServingParams(Record):
    """How the reference engine serves, whatever it serves: its cache, kernels, graphs and limits."""

    kv: KvType = "bf16"
    quantize: Literal["none", "fp8_per_tensor", "fp8_per_token", "mxfp8"] = Field(
        default="none", description="quantization of the activations that enter the output projection and the MLP"
    )
    decode_kernel: str = "tiled"
    plan_kernel: str = "tiled"
    context_kernel: str = "torch"
    merge_kernel: str = "torch"
    sparse_kernel: str = "gather"
    write_kernel: str = "torch"
    quantize_kernel: str = "torch"
    route_kernel: str = "torch"
    blocks_kernel: str = "torch"
    graph: Literal["none", "full"] = "none"
    capture: Literal["persistent", "lazy"] = Field(
        default="persistent",
        description="persistent: buffers filled before each replay; lazy: planned inside the capture",
    )
    capture_sizes: tuple[Count, ...] = (1, 2, 4, 8)
    num_blocks: Annotated[int, Field(ge=4, le=1_000_000)] = 24
    free_list: Literal["fifo", "lifo"] = "fifo"
    max_batched_tokens: Count = 96
    max_num_seqs: Count = 8
    context_chunk: Count = Field(default=128, description="context tokens gathered at once for prefill")
    zero_fill_output: bool = Field(default=False, description="decode output is zeroed first, as in PR 37442")
    drafter: bool = Field(default=False, description="a second graph in the same pool runs before logits are consumed")
    context_ranks: Annotated[int, Field(ge=1, le=8)] = Field(
        default=1, description="context-parallel ranks, each with every n-th token of a context chunk"
    )
    expert_ranks: Annotated[int, Field(ge=1, le=8)] = Field(
        default=1, description="expert-parallel ranks, each with an equal share of the experts"
    )
    dp_rank_tokens: Length = Field(
        default=0, description="tokens of the longest data-parallel rank, which activations are padded to"
    )
    pad_tokens: Literal["skip", "trash"] = Field(
        default="skip", description="what becomes of padded tokens: stored nowhere, or in a block of their own"
    )
    pad_keys: Literal[0, 1] = Field(
        default=0, description="keys that padded requests are told to have; 1 is a slot of the null block"
    )
    amax_rows: Literal["live", "batch"] = Field(
        default="live", description="rows that a scale of activations covers; batch: padded ones too, all kept finite"
    )
    dummy_steps: bool = Field(default=False, description="a dummy batch between live steps, as on an idle DP rank")
    prefix_caching: bool = Field(default=False, description="prompts share the full pages of a prefix seen before")


class EngineParams(ServingParams):
    """A serving run of the reference engine on a small model with random weights."""

    layers: tuple[LayerKind, ...] = Field(
        default=("mla", "mla"),
        description="mla: full attention; window: MLA over the last tokens; sparse: MLA over the tokens that an "
        "indexer chose; kda: linear attention",
    )
    hidden_size: Count = 64
    num_heads: Count = 4
    kv_lora_rank: Count = 32
    qk_rope_head_dim: Count = 16
    qk_nope_head_dim: Count = 16
    v_head_dim: Count = 16
    vocab_size: Count = 128
    num_experts: Annotated[int, Field(ge=0, le=256)] = 0
    num_experts_per_tok: Count = 2
    requests: tuple[tuple[Count, Count], ...] = Field(
        default=((5, 12), (70, 10), (17, 14), (130, 8)),
        description="prompt length and tokens to generate, in order of arrival",
    )
    shared_prefix: Length = Field(default=0, description="tokens that all prompts have in common")
    epochs: Annotated[int, Field(ge=1, le=100)] = 1
    window: Count = Field(default=48, description="tokens that a query of a `window` layer sees, its own included")
    window_kv: KvType | None = Field(default=None, description="cache type of `window` layers; `kv` when left out")
    index_topk: Count = Field(default=16, description="tokens that a query of a `sparse` layer sees")
    speculative_tokens: Annotated[int, Field(ge=0, le=7)] = Field(
        default=0, description="drafts that each decoding request verifies in a step, as further query tokens"
    )
    flush: bool = Field(default=False, description="at the end all caches are flushed and all is asked once more")
    cancelled: tuple[Length, ...] = Field(
        default=(),
        description="requests, counted by arrival over all epochs, whose client leaves after their first step was "
        "scheduled and before it ran",
    )


class EpochsParams(ServingParams):
    """What all measurements of a scenario's accuracy have in common: the canary, how it is served, what is asked."""

    canary: Literal["mla", "hybrid"] = Field(default="mla", description="the checkpoint under fixtures/")
    epochs: Annotated[int, Field(ge=1, le=100)] = Field(default=2, description="how often the questions are asked")
    max_tokens: Count = Field(default=112, description="tokens of an answer at most; longer ones are cut")
    timeout_seconds: Annotated[int, Field(ge=1, le=86_400)] = Field(
        default=300, description="how long one such case may take, whatever --timeout says of others"
    )
    max_batched_tokens: Count = 512
    num_blocks: Annotated[int, Field(ge=4, le=1_000_000)] = 64


class AccuracyParams(EpochsParams):
    """Accuracy by epoch: one task's questions asked of a canary, again and again, on one running engine."""

    task: str
    limit: Count | None = Field(default=None, description="the first questions of the task; all when left out")


class VllmParams(Record):
    """A canary served by vLLM itself, in a process of its own."""

    canary: Literal["mla", "hybrid", "moe"] = Field(default="mla", description="the checkpoint under fixtures/")
    runner: Literal["v1", "v2"] = Field(default="v1", description="vLLM's model runner")
    graph: Literal["none", "piecewise", "full"] = "none"
    kv: Literal["bf16", "fp8_e4m3"] = "bf16"
    backend: Literal["FLASHMLA", "FLASH_ATTN_MLA", "TRITON_MLA", "CUTLASS_MLA", "FLASHINFER_MLA"] = "FLASHMLA"
    task: str = "gsm_symbolic"
    limit: Count | None = Field(default=128, description="the first questions of the task; all when null")
    epochs: Annotated[int, Field(ge=1, le=100)] = 2
    max_tokens: Count = 112
    max_num_seqs: Count = 64
    num_blocks: Annotated[int, Field(ge=4, le=1_000_000)] = Field(default=1024, description="num_gpu_blocks_override")
    kv_megabytes: Annotated[int, Field(ge=16, le=1_000_000)] = 512
    max_batched_tokens: Annotated[int, Field(ge=64, le=65_536)] = Field(
        default=2048, description="tokens of a step; fewer than prompts hold make prefill come in chunks"
    )
    prefix_caching: bool = False
    capture_sizes: tuple[Count, ...] = (1, 2, 4, 8, 16, 32, 64)
    compare_eager: bool = Field(default=False, description="also serve without graphs, and compare the answers")
    quantization: Literal["none", "fp8_per_tensor"] = Field(
        default="none",
        description="fp8_per_tensor: weights in fp8; experts quantize their input by one scale of the whole batch",
    )
    routing: Literal["model", "simulated"] = Field(
        default="model", description="simulated: vLLM's routing simulator hands over the same experts, as 64-bit ids"
    )
    tensor_parallel: Annotated[int, Field(ge=1, le=8)] = Field(
        default=1, description="GPUs that the model is split over, a worker process each"
    )
    poison_rank: Annotated[int, Field(ge=0, le=7)] | None = Field(
        default=None, description="the one rank whose memory is filled; all of them when left out"
    )
    least_correct_percent: Annotated[int, Field(ge=0, le=100)] = 97
    timeout_seconds: Annotated[int, Field(ge=1, le=86_400)] = Field(
        default=600, description="how long one serving process may take; a cold one compiles kernels for minutes"
    )


class VllmHostParams(Record):
    """A part of vLLM's own Python, run on a CPU on inputs of the harness."""

    part: Literal["new-blocks", "decode-plan", "graph-capture", "prefill-merge", "padded-decode", "batch-order"] = (
        Field(default="new-blocks", description="which of vLLM's code; a module of harness/engines/vllm/host for each")
    )
    graph: Literal["none", "full"] = Field(
        default="none", description="full: the part fills what a captured graph reads"
    )
    amax: Literal["per_tensor", "per_token"] = Field(
        default="per_tensor", description="the scale of vLLM's FP8 quantization after `padded-decode`"
    )
    order: Literal["v1", "v2"] = Field(default="v1", description="whose order `batch-order` takes: a model runner's")
    chunk: Literal["longer", "shorter"] = Field(
        default="longer", description="than the fresh prompt beside it: the prompt chunk with context of `batch-order`"
    )
    timeout_seconds: Annotated[int, Field(ge=1, le=86_400)] = Field(
        default=300, description="how long one case may take; the first of a process imports vLLM"
    )


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

ENGINE_KERNEL_FIELDS: dict[str, str] = {
    "mla_decode": "decode_kernel",
    "mla_decode_plan": "plan_kernel",
    "mla_decode_sparse": "sparse_kernel",
    "context_attention": "context_kernel",
    "merge_attn_states": "merge_kernel",
    "write_kv": "write_kernel",
    "quantize_fp8": "quantize_kernel",
    "route_experts": "route_kernel",
    "quantize_blocks": "blocks_kernel",
}
"""Which engine parameter names the kernel of an op."""
