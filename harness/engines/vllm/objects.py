"""What the harness reads of vLLM's objects, as types: one for each class, with the names that are read and no others.

The type checker checks our code against these types. `python -m harness.engines.vllm.fits` checks every release against
them, by its text alone. Where releases differ, a type names those it is for. Nothing here is imported by vLLM, and
nothing of vLLM is imported here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    import torch

ATTENTION_MODULE = "vllm.model_executor.layers.attention.mla_attention"


@dataclass(frozen=True, slots=True)
class Relied:
    """One class or function of vLLM's that is relied on: `path` is "module:Name", `shape` has what is used of it.

    It is for releases `first <= version < last`, where those are given; `part` says what of the harness needs it. Of a
    class that is `derived` from, the shape has every function that it leaves to others.
    """

    part: str
    path: str
    shape: type
    first: str = ""
    last: str = ""
    derived: bool = False


RELIED: list[Relied] = []
"""Everything declared below, in order."""


_T = TypeVar("_T", bound=type)


def of_vllm(part: str, path: str, *, first: str = "", last: str = "", derived: bool = False) -> Callable[[_T], _T]:
    """Declare that a type is the part of vLLM's `path` that `part` of the harness uses."""

    def declare(shape: _T) -> _T:
        RELIED.append(Relied(part, path, shape, first, last, derived))
        return shape

    return declare


def path_of(shape: type) -> str:
    """Where vLLM has what a type stands for."""
    return next(relied.path for relied in RELIED if relied.shape is shape)


STEP, CACHES, CONTEXT, RECORDER, ANSWERS = (
    "a step of either runner", "KV caches of latents", "rows without context", "attention and experts, recorded",
    "`LLM` and its answers",
)  # fmt: skip


@of_vllm(STEP, "vllm.v1.core.sched.output:NewRequestData")
class NewRequest(Protocol):
    """A request in its first step; `block_ids` by KV group."""

    req_id: str
    block_ids: Sequence[list[int]]
    num_computed_tokens: int


@of_vllm(STEP, "vllm.v1.core.sched.output:CachedRequestData")
class CachedRequests(Protocol):
    """Requests of earlier steps, by column; `new_block_ids` are given now, and all there are for a resumed one."""

    req_ids: list[str]
    new_block_ids: list[Sequence[list[int]] | None]
    num_computed_tokens: list[int]
    resumed_req_ids: set[str]


@of_vllm(STEP, "vllm.v1.core.sched.output:SchedulerOutput")
class SchedulerOutput(Protocol):
    """What a runner is to do in one step."""

    scheduled_new_reqs: list[NewRequest]
    scheduled_cached_reqs: CachedRequests
    num_scheduled_tokens: dict[str, int]
    total_num_scheduled_tokens: int


@of_vllm(STEP, "vllm.v1.worker.gpu_input_batch:InputBatch")
class InputBatch(Protocol):
    """The first runner's batch: requests in the order of their rows."""

    req_ids: list[str]


@of_vllm(CACHES, "vllm.v1.kv_cache_interface:KVCacheSpec")
class KVCacheSpec(Protocol):
    """How a group's blocks are laid out; `block_size` in tokens."""

    block_size: int


@of_vllm(CACHES, "vllm.v1.kv_cache_interface:MLAAttentionSpec")
class MLAAttentionSpec(KVCacheSpec, Protocol):
    """That of latents, known by the name of its class."""


@of_vllm(CACHES, "vllm.v1.kv_cache_interface:UniformTypeKVCacheSpecs")
class UniformSpecs(KVCacheSpec, Protocol):
    """Several specs of one kind as one; by layer."""

    kv_cache_specs: dict[str, KVCacheSpec]


@of_vllm(CACHES, "vllm.v1.kv_cache_interface:KVCacheGroupSpec")
class KVCacheGroup(Protocol):
    """Layers that share block tables."""

    layer_names: list[str]
    kv_cache_spec: KVCacheSpec


@of_vllm(CACHES, "vllm.v1.kv_cache_interface:KVCacheConfig")
class KVCacheConfig(Protocol):
    """All KV groups of a model."""

    kv_cache_groups: list[KVCacheGroup]


@of_vllm(CACHES, "vllm.config.compilation:CompilationConfig")
class CompilationConfig(Protocol):
    """Holds the layers by name."""

    static_forward_context: Mapping[str, Any]


@of_vllm(CACHES, ATTENTION_MODULE + ":MLAAttention")
class AttentionLayer(Protocol):
    """A layer of MLA: its cache [N, P, D] once it is bound, and what computes."""

    kv_cache: torch.Tensor
    impl: Any


@of_vllm(ANSWERS, "vllm.config.model:ModelConfig")
class ModelConfig(Protocol):
    """The model as vLLM read it."""

    dtype: Any

    def get_vocab_size(self) -> int: ...


@of_vllm(ANSWERS, "vllm.config.cache:CacheConfig")
class CacheConfig(Protocol):
    """Whose `cache_dtype` is "auto" or a name."""

    cache_dtype: str


@of_vllm(ANSWERS, "vllm.config.vllm:VllmConfig")
class VllmConfig(Protocol):
    """All configurations of an engine."""

    model_config: ModelConfig
    cache_config: CacheConfig
    compilation_config: CompilationConfig


@of_vllm(STEP, "vllm.v1.worker.gpu_model_runner:GPUModelRunner")
class FirstRunner(Protocol):
    """Model runner V1. `kv_cache_config` is there once the caches are."""

    vllm_config: VllmConfig
    kv_cache_config: KVCacheConfig
    input_batch: InputBatch
    device: torch.device

    def execute_model(self, scheduler_output: SchedulerOutput, *args: Any, **kwargs: Any) -> Any: ...
    def load_model(self, *args: Any, **kwargs: Any) -> Any: ...
    def get_model(self) -> torch.nn.Module: ...


@of_vllm(STEP, "vllm.v1.worker.gpu.model_runner:GPUModelRunner")
class SecondRunner(Protocol):
    """Model runner V2, whose dummy and profile runs come through `execute_model` too."""

    vllm_config: VllmConfig
    kv_cache_config: KVCacheConfig
    device: torch.device

    def execute_model(
        self, scheduler_output: SchedulerOutput, *args: Any, dummy_run: bool = False, **kwargs: Any
    ) -> Any: ...
    def load_model(self, *args: Any, **kwargs: Any) -> Any: ...
    def get_model(self) -> torch.nn.Module: ...


RUNNERS = (path_of(FirstRunner), path_of(SecondRunner))


_CHUNKED = ATTENTION_MODULE + ":MLACommonPrefillMetadata.ChunkedContextMetadata"


@of_vllm(CONTEXT, _CHUNKED, last="0.26.0")
class CountedContext(Protocol):
    """Up to 0.25: rows of prefill past a count have no context, and the last merge does not read them."""

    prefill_tokens_with_context: int | None


@of_vllm(CONTEXT, _CHUNKED, first="0.26.0", last="0.28.0")
class MaskedContext(Protocol):
    """In 0.26 and 0.27: where each request's tokens of a chunk begin, [chunks, R + 1]; none are where two are equal."""

    cu_seq_lens: torch.Tensor


@of_vllm(CONTEXT, _CHUNKED, first="0.28.0")
class MarkedContext(Protocol):
    """Since 0.28: a chunk is of requests that have context in it, and rows that no chunk covers are listed."""

    empty_token_slices: list[slice]


@of_vllm(CONTEXT, "vllm.v1.attention.backends.mla.prefill.base:MLAPrefillBackend", first="0.26.0", last="0.28.0")
class PrefillBackend(Protocol):
    """Whose kernels attend to a chunk of context: out [T, H, V] and lse [H, T]."""

    def run_prefill_context_chunk(
        self, chunk_idx: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]: ...


@of_vllm(CONTEXT, ATTENTION_MODULE + ":MLACommonPrefillMetadata", last="0.28.0")
class PrefillMetadata(Protocol):
    """Prefills of a step: where the rows of each begin, [R + 1]."""

    query_start_loc: torch.Tensor
    chunked_context: Any
    prefill_backend: PrefillBackend


@of_vllm(CONTEXT, ATTENTION_MODULE + ":MLACommonMetadata", last="0.28.0")
class AttentionMetadata(Protocol):
    """A step's plan for attention."""

    prefill: PrefillMetadata


@of_vllm(CONTEXT, ATTENTION_MODULE + ":MLACommonImpl", last="0.28.0")
class ContextImpl(Protocol):
    """Whose context attention, out [T, H, V] and lse [H, T], is merged with that of new tokens."""

    def _compute_prefill_context(
        self, q: torch.Tensor, kv_c_and_k_pe_cache: torch.Tensor, attn_metadata: AttentionMetadata, *args: Any
    ) -> Any: ...


@of_vllm(CONTEXT, ATTENTION_MODULE + ":init_mla_context_partial", first="0.28.0")
class InitContextPartial(Protocol):
    """Allocates context attention of all rows, and neutralises those that are listed, before any chunk is folded in."""

    def __call__(self, chunked_context: MarkedContext, *args: Any, **kwargs: Any) -> Any: ...


@of_vllm(RECORDER, ATTENTION_MODULE + ":MLACommonImpl")
class AttentionImpl(Protocol):
    """The two forms of MLA attention: decodes return (out, lse), prefills write their argument `output`."""

    def forward_mqa(self, *args: Any, **kwargs: Any) -> Any: ...
    def forward_mha(self, *args: Any, output: torch.Tensor, **kwargs: Any) -> None: ...


@of_vllm(RECORDER, "vllm.model_executor.layers.fused_moe.router.base_router:BaseRouter")
class Router(Protocol):
    """The choice of experts, a pair of weights and ids."""

    global_num_experts: int

    def select_experts(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]: ...


@of_vllm(RECORDER, "vllm.model_executor.layers.fused_moe.runner.moe_runner:MoERunner")
class RouterHolder(Protocol):
    """Who asks a router."""

    router: Router


_SIMULATOR = "vllm.model_executor.layers.fused_moe.router.routing_simulator_router"


@of_vllm("routing strategy", _SIMULATOR + ":RoutingStrategy", derived=True)
class RoutingStrategy(Protocol):
    """What vLLM's simulator asks for experts."""

    def route_tokens(
        self, hidden_states: torch.Tensor, router_logits: torch.Tensor, top_k: int,
        indices_type: torch.dtype | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]: ...  # fmt: skip


@of_vllm(ANSWERS, "vllm.logprobs:Logprob")
class Logprob(Protocol):
    """A token's log probability and rank."""

    logprob: float
    rank: int | None


@of_vllm(ANSWERS, "vllm.outputs:CompletionOutput")
class Completion(Protocol):
    """One answer; `logprobs` by position, each by token."""

    text: str
    token_ids: Sequence[int]
    finish_reason: str | None
    logprobs: Sequence[Mapping[int, Logprob]] | None


@of_vllm(ANSWERS, "vllm.outputs:RequestOutput")
class RequestOutput(Protocol):
    """What became of one prompt."""

    outputs: list[Completion]
    prompt_token_ids: list[int]
    prompt_logprobs: list[Mapping[int, Logprob]]


@of_vllm(ANSWERS, "vllm.v1.engine.llm_engine:LLMEngine")
class Engine(Protocol):
    """The engine of an `LLM`."""

    vllm_config: VllmConfig


@of_vllm(ANSWERS, "vllm:SamplingParams")
class SamplingParams(Protocol):
    """How answers are drawn; `stop` words, and how many `logprobs` beside those of the tokens taken."""

    def __init__(
        self, *, temperature: float, max_tokens: int, stop: list[str] | None = None, logprobs: int | None = None,
        prompt_logprobs: int | None = None,
    ) -> None: ...  # fmt: skip


@of_vllm(ANSWERS, "vllm:LLM")
class LLM(Protocol):
    """vLLM in this process. Its arguments are those of `harness.engines.vllm.target.llm_options`."""

    llm_engine: Engine

    def generate(
        self, prompts: list[str], sampling_params: SamplingParams, *, use_tqdm: bool
    ) -> list[RequestOutput]: ...
    def get_tokenizer(self) -> Any: ...
    def collective_rpc(self, method: Callable[[Any], Any], timeout: float | None = None) -> list[Any]: ...


class Vllm(Protocol):
    """The package."""

    __version__: str
    LLM: Callable[..., LLM]
    SamplingParams: type[SamplingParams]
