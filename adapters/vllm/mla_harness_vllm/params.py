"""Parameters of cases that run vLLM: a served canary, or a part of vLLM's own Python on a CPU.

No torch here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from harness.api import Params
from mla_harness_adapters.served_params import Count, ServedParams

Dense = Literal["FLASHMLA", "FLASH_ATTN_MLA", "TRITON_MLA", "CUTLASS_MLA", "FLASHINFER_MLA"]
Sparse = Literal["FLASHMLA_SPARSE", "FLASHINFER_MLA_SPARSE_SM90", "FLASH_ATTN_MLA_SPARSE"]
OnCpu = Literal["CPU_MLA", "AMX_MLA"]


class ServedVllmParams(ServedParams):
    """What cases of a served vLLM have in common, on a GPU and on a CPU."""

    canary: Literal["mla", "hybrid", "moe", "dsa", "mtp"] = Field(
        default="mla", description="the checkpoint under fixtures/"
    )
    runner: Literal["v1", "v2"] = Field(default="v1", description="vLLM's model runner")
    graph: Literal[
        "none", "piecewise", "full", "full_decode_only", "full_and_piecewise", "default"
    ] = Field(
        default="none",
        description="vLLM's cudagraph_mode; default: its own mode, sizes and compiler",
    )
    backend: Literal[Dense, Sparse, OnCpu]
    index_topk: Literal[512, 1024, 2048] = Field(
        default=512, description="tokens that canary dsa attends to"
    )
    num_blocks: Annotated[int, Field(ge=4, le=1_000_000)] = Field(
        default=1024, description="num_gpu_blocks_override"
    )
    kv_megabytes: Annotated[int, Field(ge=16, le=1_000_000)] = 512
    prefix_caching: bool = False
    async_scheduling: bool = False
    streams: Literal["none", "delayed"] = Field(
        default="none",
        description="delayed: copies from pinned memory take longer, and their sources are watched",
    )
    expert_parallel: bool = False
    moe_backend: Literal["triton", "default"] = "triton"
    speculative: Literal["none", "ngram", "mtp", "eagle"] = Field(
        default="none",
        description=(
            "who drafts the three tokens that one step verifies; ngram: the prompt, mtp: canary"
            " mtp's module, eagle: the same layer as a model of its own, fixtures/canary-eagle"
        ),
    )
    script: Literal["abort", "cache-reuse", "lengths", "preempt", "reload", "sleep"] | None = Field(
        default=None,
        description="serve over HTTP, and take the steps of this script in place of questions",
    )
    batch_invariant: bool = Field(
        default=False, description="VLLM_BATCH_INVARIANT=1, where a script allows 0 bits"
    )
    quantization: Literal["none", "fp8_per_tensor"] = Field(
        default="none",
        description=(
            "fp8_per_tensor: weights in fp8; experts quantize their input by one scale of the whole"
            " batch"
        ),
    )
    routing: Literal["model", "simulated"] = Field(
        default="model",
        description=(
            "simulated: vLLM's routing simulator hands over the same experts, as 64-bit ids"
        ),
    )
    tensor_parallel: Annotated[int, Field(ge=1, le=8)] = Field(
        default=1,
        description="GPUs that the heads of a layer are split over, a worker process each",
    )
    decode_context_parallel: Annotated[int, Field(ge=1, le=8)] = Field(
        default=1,
        description="of the ranks of tensor_parallel, those that share the tokens of the KV cache",
    )
    pipeline_parallel: Annotated[int, Field(ge=1, le=8)] = Field(
        default=1, description="stages of layers, each with its own ranks of tensor_parallel"
    )
    prefilled: Annotated[int, Field(ge=0, le=64)] = Field(
        default=0,
        description="the first answers whose decodes are compared with one prefill of their tokens",
    )
    poison_rank: Annotated[int, Field(ge=0, le=7)] | None = Field(
        default=None, description="the only rank to poison; all ranks when left out"
    )

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if (self.canary == "dsa") != ("SPARSE" in self.backend):
            yield (
                f"backend {self.backend} does not go with canary {self.canary}: sparse backends"
                " serve dsa alone"
            )
        if self.script and self.compare_eager:
            yield "compare_eager compares answers to questions, and a script asks none"
        tensor = self.tensor_parallel
        context = self.decode_context_parallel
        rank = self.poison_rank
        # vLLM itself ends with an assertion deep in a layer.
        if tensor & (tensor - 1):
            yield f"tensor_parallel {tensor} is no power of two, so heads cannot be split"
        if tensor % context:
            yield f"decode_context_parallel {context} does not divide tensor_parallel {tensor}"
        if rank is not None and rank >= self.num_gpus:
            yield (
                f"poison_rank {rank} is no rank of {self.num_gpus}; the last is {self.num_gpus - 1}"
            )

    @property
    def num_gpus(self) -> int:
        """See :attr:`Params.num_gpus`. Each rank has one."""
        return self.tensor_parallel * self.pipeline_parallel

    def gives(self) -> frozenset[str]:
        delayed = {"moves"} if self.streams == "delayed" else set()
        return super().gives() | {"script" if self.script else "answers"} | delayed


class VllmParams(ServedVllmParams):
    """A canary served by vLLM in its own process."""

    backend: Literal[Dense, Sparse] = "FLASHMLA"


class VllmCpuParams(ServedVllmParams):
    """A canary served by vLLM's CPU build in its own process.

    Fields with one value are what the CPU build does not have: a second runner (it needs Triton),
    graphs, streams.
    """

    canary: Literal["mla", "moe", "mtp"] = Field(
        default="mla",
        description="the checkpoint under fixtures/; hybrid imports a package for CUDA",
    )
    runner: Literal["v1"] = Field(default="v1", description="vLLM's model runner")
    graph: Literal["none", "default"] = Field(
        default="none", description="default: vLLM compiles the model, which takes minutes"
    )
    backend: Literal[OnCpu] = Field(
        default="CPU_MLA",
        description="AMX_MLA needs a processor with AMX; vLLM takes it there unless told otherwise",
    )
    rotary: Literal["native", "released"] = Field(
        default="native",
        description=(
            "native: rotary embeddings in torch, past the wrong op of vLLM's CPU build; released:"
            " as vLLM runs them"
        ),
    )
    # A processor answers slowly, so a case asks few questions.
    limit: Count | None = Field(
        default=32, description="the first questions of the task; all when null"
    )
    max_num_seqs: Count = 16
    num_blocks: Annotated[int, Field(ge=4, le=1_000_000)] = Field(
        default=256, description="num_gpu_blocks_override"
    )
    kv_megabytes: Annotated[int, Field(ge=16, le=1_000_000)] = 64
    prefilled: Annotated[int, Field(ge=0, le=64)] = Field(
        default=8,
        description="the first answers whose decodes are compared with one prefill of their tokens",
    )
    moe_backend: Literal["default"] = "default"
    streams: Literal["none"] = "none"
    script: None = None
    batch_invariant: Literal[False] = False
    quantization: Literal["none"] = "none"
    kv: Literal["bf16"] = "bf16"


class VllmHostParams(Params):
    """A part of vLLM's own Python, run on a CPU on inputs of the harness."""

    part: Literal[
        "new-blocks",
        "decode-plan",
        "graph-capture",
        "prefill-merge",
        "padded-decode",
        "padded-experts",
        "batch-order",
        "indexer-records",
        "idle-rows",
        "context-parallel",
        "compressed-metadata",
        "in-flight",
        "grammar-rows",
        "drafter-tokens",
        "kv-moves",
        "kv-handoff",
    ] = Field(
        default="new-blocks",
        description="the part to run; a module of mla_harness_vllm.host",
    )
    # Without a GPU nothing is captured: the case fills the buffers that a replay would read.
    graph: Literal["none", "full"] = Field(
        default="none", description="full: the part fills what a captured graph reads"
    )
    amax: Literal["per_tensor", "per_token"] = Field(
        default="per_tensor",
        description="the scale of vLLM's FP8 quantization in `padded-decode` and `padded-experts`",
    )
    runner: Literal["v1", "v2"] = Field(
        default="v1",
        description=(
            "the model runner that orders the batch of `batch-order`, or marks the rows of"
            " `padded-experts`"
        ),
    )
    chunk: Literal["longer", "shorter"] = Field(
        default="longer",
        description=(
            "the prompt chunk with context of `batch-order`, compared with the fresh prompt"
        ),
    )
    writer: Literal["plain", "fused"] = Field(
        default="plain",
        description=(
            "who stores the keys of `indexer-records`; DeepSeek V4 compresses and stores in one"
        ),
    )
    idle: Literal["target", "drafter"] = Field(
        default="target", description="whose dummy step `idle-rows` runs"
    )
    search: Literal["lengths", "drafts", "slots", "chunks", "partition"] = Field(
        default="lengths", description="which arithmetic `context-parallel` searches"
    )
    metadata: Literal["window", "drafts", "compressed", "states"] = Field(
        default="window", description="which metadata of DeepSeek V4 `compressed-metadata` builds"
    )
    prepares: Literal["padded", "listed", "second"] = Field(
        default="padded",
        description=(
            "who prepares the next tokens of `drafter-tokens`: the first runner, from padded rows"
            " or lists of sampled tokens, or the second runner"
        ),
    )
    event: Literal["preempt", "abort", "reset"] = Field(
        default="preempt",
        description="what happens to requests of `in-flight` while their output is in flight",
    )
    drafts: Annotated[int, Field(ge=0, le=4)] = Field(
        default=0, description="drafts of a step of `in-flight`"
    )
    stages: Annotated[int, Field(ge=1, le=4)] = Field(
        default=1,
        description="pipeline stages of `in-flight`, and steps in flight while one is scheduled",
    )
    connector: Literal["simple", "offloading", "nixl", "mooncake"] = Field(
        default="simple",
        description=(
            "the KV connector: of `kv-moves` SimpleCPUOffloadConnector or OffloadingConnector, of"
            " `kv-handoff` NixlConnector or MooncakeConnector"
        ),
    )
    hybrid: bool = Field(
        default=False,
        description="`kv-moves` and `kv-handoff` with a second group of layers, which has a window",
    )
    sidecar: Literal["none", "index", "state"] = Field(
        default="none", description="what `kv-moves` and `kv-handoff` move beside latents"
    )
    # Half-way, because a transfer that never began leaves no bits of another request behind.
    failing: tuple[int, ...] = Field(
        default=(), description="transfers of `kv-handoff`, by number, that fail half-way"
    )
    overlapped: bool = Field(
        default=False,
        description="`kv-moves` schedules a step before it looks at the result of the one before",
    )
    timeout_seconds: Annotated[int, Field(ge=1, le=86_400)] = Field(
        default=300, description="how long one case may take; the first of a process imports vLLM"
    )

    @property
    def sidecars(self) -> str:
        """What the layers of a connector's part keep beside latents."""
        return "window" if self.hybrid else "" if self.sidecar == "none" else self.sidecar

    def gives(self) -> frozenset[str]:
        counts = {"requests"} if self.part == "in-flight" else set()
        return super().gives() | counts | ({"moves"} if self.part.startswith("kv-") else set())
