"""Types for vLLM's objects, with only the names that the harness uses. vLLM is not imported.

The type checker checks the adapter against these types. `python -m adapters.vllm.tests.fits` checks
the text of each release against them. If releases differ, a type names its releases.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    import torch
    from torch import Tensor

ATTENTION_MODULE = "vllm.model_executor.layers.attention.mla_attention"


@dataclass(frozen=True, slots=True)
class Relied:
    """A class or function of vLLM at `path`, "module:Name".

    `shape` is our type, `part` what of the harness uses it.

    It is for releases `first <= version < last`, if given. If the harness derives from the class
    (`derived`), `shape` has all of its abstract methods.
    """

    part: str
    path: str
    shape: type
    first: str = ""
    last: str = ""
    derived: bool = False


RELIED: list[Relied] = []
"""All declarations below, in order."""

_T = TypeVar("_T", bound=type)


def of_vllm(
    part: str, path: str, *, first: str = "", last: str = "", derived: bool = False
) -> Callable[[_T], _T]:
    """Declare a type for vLLM's `path`. See `Relied`."""

    def declare(shape: _T) -> _T:
        RELIED.append(Relied(part, path, shape, first, last, derived))
        return shape

    return declare


def path_of(shape: type) -> str:
    """The path in vLLM of a declared type."""
    return next(relied.path for relied in RELIED if relied.shape is shape)


STEP = "a step of either runner"
CACHES = "KV caches of latents"
CONTEXT = "rows without context"
RECORDER = "attention and experts, recorded"
ANSWERS = "`LLM` and its answers"


@of_vllm(STEP, "vllm.v1.core.sched.output:NewRequestData")
class NewRequest(Protocol):
    """A request in its first step, with `block_ids` by KV group."""

    req_id: str
    block_ids: Sequence[list[int]]
    num_computed_tokens: int


@of_vllm(STEP, "vllm.v1.core.sched.output:CachedRequestData")
class CachedRequests(Protocol):
    """Requests of earlier steps, by column. `new_block_ids` has all blocks of a resumed request."""

    req_ids: list[str]
    new_block_ids: list[Sequence[list[int]] | None]
    num_computed_tokens: list[int]
    resumed_req_ids: set[str]


@of_vllm(STEP, "vllm.v1.core.sched.output:SchedulerOutput")
class SchedulerOutput(Protocol):
    """The work of one step."""

    scheduled_new_reqs: list[NewRequest]
    scheduled_cached_reqs: CachedRequests
    num_scheduled_tokens: dict[str, int]
    total_num_scheduled_tokens: int


@of_vllm(STEP, "vllm.v1.worker.gpu_input_batch:InputBatch")
class InputBatch(Protocol):
    """The first runner's batch, with requests in the order of their rows."""

    req_ids: list[str]


@of_vllm(CACHES, "vllm.v1.kv_cache_interface:KVCacheSpec")
class KVCacheSpec(Protocol):
    """The layout of a group's blocks, with `block_size` in tokens."""

    block_size: int


@of_vllm(CACHES, "vllm.v1.kv_cache_interface:MLAAttentionSpec")
class MLAAttentionSpec(KVCacheSpec, Protocol):
    """The spec of latents. The harness looks for the name of this class."""


@of_vllm(CACHES, "vllm.v1.kv_cache_interface:UniformTypeKVCacheSpecs")
class UniformSpecs(KVCacheSpec, Protocol):
    """Several specs of one kind, by layer."""

    kv_cache_specs: dict[str, KVCacheSpec]


@of_vllm(CACHES, "vllm.v1.kv_cache_interface:KVCacheGroupSpec")
class KVCacheGroup(Protocol):
    """Layers that share block tables."""

    layer_names: list[str]
    kv_cache_spec: KVCacheSpec


@of_vllm(CACHES, "vllm.v1.kv_cache_interface:KVCacheConfig")
class KVCacheConfig(Protocol):
    num_blocks: int
    kv_cache_groups: list[KVCacheGroup]


@of_vllm(CACHES, "vllm.config.compilation:CompilationConfig")
class CompilationConfig(Protocol):
    """Has the layers by name."""

    static_forward_context: Mapping[str, Any]


@of_vllm(CACHES, ATTENTION_MODULE + ":MLAAttention")
class AttentionLayer(Protocol):
    """An MLA layer with its cache [N, P, D], once bound, and its implementation."""

    kv_cache: Tensor
    impl: Any


@of_vllm(ANSWERS, "vllm.config.model:ModelConfig")
class ModelConfig(Protocol):
    dtype: Any
    max_model_len: int

    def get_vocab_size(self) -> int: ...


@of_vllm(ANSWERS, "vllm.config.cache:CacheConfig")
class CacheConfig(Protocol):
    """`cache_dtype` is "auto" or the name of a dtype."""

    cache_dtype: str


@of_vllm(ANSWERS, "vllm.config.vllm:VllmConfig")
class VllmConfig(Protocol):
    model_config: ModelConfig
    cache_config: CacheConfig
    compilation_config: CompilationConfig


@of_vllm(STEP, "vllm.v1.worker.gpu_model_runner:GPUModelRunner")
class FirstRunner(Protocol):
    """Model runner V1. It has `kv_cache_config` once the caches are allocated."""

    vllm_config: VllmConfig
    kv_cache_config: KVCacheConfig
    input_batch: InputBatch
    device: torch.device

    def execute_model(
        self, scheduler_output: SchedulerOutput, *args: Any, **kwargs: Any
    ) -> Any: ...
    def load_model(self, *args: Any, **kwargs: Any) -> Any: ...
    def get_model(self) -> torch.nn.Module: ...


@of_vllm(STEP, "vllm.v1.worker.gpu.model_runner:GPUModelRunner")
class SecondRunner(Protocol):
    """Model runner V2. Its dummy and profile runs use `execute_model` too."""

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
    """Up to 0.25: prefill rows past a count have no context, and the last merge does not read
    them.
    """

    prefill_tokens_with_context: int | None


@of_vllm(CONTEXT, _CHUNKED, first="0.26.0", last="0.28.0")
class MaskedContext(Protocol):
    """In 0.26 and 0.27: the start of each request's tokens in a chunk, [chunks, R + 1]."""

    cu_seq_lens: Tensor


@of_vllm(CONTEXT, _CHUNKED, first="0.28.0")
class MarkedContext(Protocol):
    """Since 0.28: a chunk has only requests with context, and the rows of no chunk are listed."""

    empty_token_slices: list[slice]


@of_vllm(
    CONTEXT,
    "vllm.v1.attention.backends.mla.prefill.base:MLAPrefillBackend",
    first="0.26.0",
    last="0.28.0",
)
class PrefillBackend(Protocol):
    """Attention over a chunk of context: out [T, H, V] and lse [H, T]."""

    def run_prefill_context_chunk(
        self, chunk_idx: int, q: Tensor, k: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor]: ...


@of_vllm(CONTEXT, ATTENTION_MODULE + ":MLACommonPrefillMetadata", last="0.28.0")
class PrefillMetadata(Protocol):
    """The prefills of a step, with the start of each one's rows, [R + 1]."""

    query_start_loc: Tensor
    chunked_context: Any
    prefill_backend: PrefillBackend


@of_vllm(CONTEXT, ATTENTION_MODULE + ":MLACommonMetadata", last="0.28.0")
class AttentionMetadata(Protocol):
    prefill: PrefillMetadata


@of_vllm(CONTEXT, ATTENTION_MODULE + ":MLACommonImpl", last="0.28.0")
class ContextImpl(Protocol):
    """Context attention, out [T, H, V] and lse [H, T], which vLLM merges with the attention of new
    tokens.
    """

    def _compute_prefill_context(
        self, q: Tensor, kv_c_and_k_pe_cache: Tensor, attn_metadata: AttentionMetadata, *args: Any
    ) -> Any: ...


@of_vllm(CONTEXT, ATTENTION_MODULE + ":init_mla_context_partial", first="0.28.0")
class InitContextPartial(Protocol):
    """Allocates the context attention of all rows, and clears the listed rows."""

    def __call__(self, chunked_context: MarkedContext, *args: Any, **kwargs: Any) -> Any: ...


@of_vllm(RECORDER, ATTENTION_MODULE + ":MLACommonImpl")
class AttentionImpl(Protocol):
    """The two forms of MLA attention.

    Decodes return (out, lse); prefills write to their argument `output`.
    """

    def forward_mqa(self, *args: Any, **kwargs: Any) -> Any: ...
    def forward_mha(self, *args: Any, output: Tensor, **kwargs: Any) -> None: ...


@of_vllm(RECORDER, "vllm.model_executor.layers.fused_moe.router.base_router:BaseRouter")
class Router(Protocol):
    """The choice of experts, which returns weights and ids."""

    global_num_experts: int

    def select_experts(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]: ...


@of_vllm(RECORDER, "vllm.model_executor.layers.fused_moe.runner.moe_runner:MoERunner")
class RouterHolder(Protocol):
    router: Router


_SIMULATOR = "vllm.model_executor.layers.fused_moe.router.routing_simulator_router"


@of_vllm("routing strategy", _SIMULATOR + ":RoutingStrategy", derived=True)
class RoutingStrategy(Protocol):
    """A choice of experts in vLLM's simulator."""

    def route_tokens(
        self,
        hidden_states: Tensor,
        router_logits: Tensor,
        top_k: int,
        indices_type: torch.dtype | None = None,
    ) -> tuple[Tensor, Tensor]: ...


@of_vllm(ANSWERS, "vllm.logprobs:Logprob")
class Logprob(Protocol):
    logprob: float
    rank: int | None


@of_vllm(ANSWERS, "vllm.outputs:CompletionOutput")
class Completion(Protocol):
    """One answer, with `logprobs` by position and token."""

    text: str
    token_ids: Sequence[int]
    finish_reason: str | None
    logprobs: Sequence[Mapping[int, Logprob]] | None


@of_vllm(ANSWERS, "vllm.outputs:RequestOutput")
class RequestOutput(Protocol):
    """`prompt_logprobs` has a row for each token of a prompt, if they are asked for; the first row
    is None.
    """

    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[int, Logprob]]
    outputs: list[Completion]


@of_vllm(ANSWERS, "vllm.v1.engine.llm_engine:LLMEngine")
class Engine(Protocol):
    vllm_config: VllmConfig


@of_vllm(ANSWERS, "vllm:SamplingParams")
class SamplingParams(Protocol):
    """How answers are drawn. `logprobs` and `prompt_logprobs` count tokens besides the one that is
    there.
    """

    def __init__(
        self,
        *,
        temperature: float,
        max_tokens: int,
        stop: list[str] | None = None,
        logprobs: int | None = None,
        prompt_logprobs: int | None = None,
    ) -> None: ...


@of_vllm(ANSWERS, "vllm.v1.metrics.reader:Counter")
class Counter(Protocol):
    name: str
    value: int


@of_vllm(ANSWERS, "vllm:LLM")
class LLM(Protocol):
    """vLLM in this process.

    Its arguments are checked by `mla_harness_vllm.target.llm_options`.
    """

    llm_engine: Engine

    def generate(
        self,
        prompts: Sequence[str | Mapping[str, list[int]]],
        sampling_params: SamplingParams,
        *,
        use_tqdm: bool,
    ) -> list[RequestOutput]: ...
    def get_metrics(self) -> list[Counter]: ...
    def collective_rpc(
        self, method: Callable[[Any], Any], timeout: float | None = None
    ) -> list[Any]: ...


class Vllm(Protocol):
    __version__: str
    LLM: Callable[..., LLM]
    SamplingParams: type[SamplingParams]
