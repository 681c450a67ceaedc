"""All differences between the releases of vLLM that are supported, in one place.

A hook or a part asks here for a name or for what a release has, and has no release in its own code.
The types of vLLM's objects stand in `objects`, the texts of injected bugs in `patches.yaml`.
Arguments that only some releases have are picked by `accepted` where they are given.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from mla_harness_adapters.releases import Has, HasText, NotServed, Releases, Renamed

if TYPE_CHECKING:
    from mla_harness_vllm.params import VllmParams

CONNECTORS = "vllm.distributed.kv_transfer.kv_connector.v1"
_V4 = "vllm.models.deepseek_v4"
_DRAFTERS = "vllm.v1.worker.gpu.spec_decode"

# Cases of a served vLLM.


def _is_triton_in_full_graphs(params: VllmParams) -> bool:
    return params.backend == "TRITON_MLA" and params.graph == "full"


def _lacks_humming(params: VllmParams) -> bool:
    return params.quantization != "none" and find_spec("humming") is None


def _is_on_cpu(params: VllmParams) -> bool:
    return params.backend in ("CPU_MLA", "AMX_MLA")


NOT_SERVED = (
    NotServed(_is_on_cpu, "has no MLA for a CPU, which begins with 0.29", Releases(last="0.28")),
    NotServed(
        _is_on_cpu,
        "has CPU_MLA, but imports for it a function that exists with CUDA alone; 0.29 serves it",
        Releases("0.28", "0.29"),
    ),
    NotServed(
        _is_triton_in_full_graphs, "refuses full graphs with TRITON_MLA", Releases(last="0.22")
    ),
    NotServed(
        _lacks_humming,
        "imports humming-kernels for any quantization, which is not installed",
        Releases("0.22", "0.23"),
    ),
)
"""Cases that some releases do not serve."""

# Hooks in a worker: how rows without context are ignored (`serve.context_rows`).
MARKED_CONTEXT = Has("init_mla_context_partial", "since 0.28")
"""vLLM clears listed rows where it allocates the result."""
MASKED_CONTEXT = Has("mask_empty_context", "in 0.26 and 0.27")
"""vLLM masks rows after each chunk. Before, the last merge gets a count of rows."""

# Kernels.
OLDEST = "0.20"
"""The first release with the kernel signatures that are called."""
LSE_TO_BASE_E = Has("log2_lse_to_ln", "since 0.29")
"""vLLM converts the log-sum-exp of TRT-LLM's kernel from base 2."""
LENGTHS_OF_RECORDS = Has("seq_lens", "up to 0.24")
"""The gather of `fp8_ds_mla` records asks for the lengths too."""

# The model runners.
SORTING = Renamed(("gather_batch_req_state", "prepare_inputs"), "since 0.28")
"""The method in which the second runner sorts its batch."""
PREFILL_TOKENS = Renamed(("prefill_token_ids", "prompt_token_ids"), "of the second runner")
"""The tokens of a new request, with the output of a preempted one."""
PADDING_OF_FIRST_RUNNER = Has("_prepare_padding_mask", "since 0.31")
PADDING_OF_SECOND_RUNNER = Has("is_padding", "since 0.27")
"""A runner marks the rows of graph padding."""
PADDING_OF_ROUTER = Has("_get_padding_mask", "later releases")
"""The router reads these marks."""
UVA_METHOD = Has("uva", "a method in later releases")
"""How `UvaBuffer` gives the device's view: by a method over `_uva`, or as an attribute."""

# Drafters and grammars.
SPECULATOR = Renamed(
    tuple(
        f"{_DRAFTERS}.{name}.speculator"
        for name in ("target_dependent_ar", "autoregressive", "eagle")
    )
)
"""The module of the drafter that reads the target's hidden states."""
PREPARE_DRAFTS = Renamed(("prepare_prefill_inputs", "prepare_eagle_inputs"))
COMMON_DRAFTER = Renamed(
    (f"{_DRAFTERS}.speculator",),
    "since 0.24",
    lacks="vLLM has no class that drafters have in common: idle=drafter needs 0.24",
)
TRIMMED_DRAFTS = HasText("adaptive", "later releases")
"""The second runner may keep fewer drafts than were scheduled."""

# Context parallelism.
LOCAL_LENGTHS = Renamed(("prepare_dcp_local_seq_lens", "maybe_prepare_dcp_local_seq_lens"))
LOCALIZED_DECODES = Has("_dcp_localize_decode_seq_lens", "releases with several ranks")
"""The sparse indexer counts the keys of its own rank."""
ROWS_OF_LENGTHS = HasText("decode_seq_lens_buffer.dim() == 2", "in 0.21")
"""The buffer of lengths has a row for each request."""
PREFILL_RANKS = Renamed(
    ("vllm.v1.worker.gpu.pcp_manager",),
    "since 0.26",
    lacks="vLLM has no prefill context parallelism: search=partition needs 0.26",
)

# DeepSeek V4.
DRAFT_BLOCKS = Has("noncausal_index_width", "since 0.26")
"""The window of a block of drafts."""
WINDOW_OF_PROMPTS = Has("prefill_swa_indices", "later releases")
SPARSE_MLA = Renamed(
    (f"{_V4}.sparse_mla", "vllm.v1.attention.backends.mla.flashmla_sparse"), "since 0.24"
)
SPARSE_BUILDER = Renamed(
    ("DeepseekV4FlashMLAMetadataBuilder", "FlashMLASparseMetadataBuilder"), "since 0.24"
)
"""Apart from the builder of DeepSeek V3.2, which counts a GPU's units and has dimensions of its
own.
"""
COMPRESSOR = Renamed((f"{_V4}.compressor", "vllm.model_executor.layers.deepseek_compressor"))
SKIPPED_STATES = Has("c128_boundary", "later releases")
"""A step in which no state ends is skipped."""
FUSED_WRITER = Renamed(
    (
        f"{_V4}.common.ops.fused_compress_quant_cache",
        "vllm.v1.attention.ops.deepseek_v4_ops.fused_compress_quant_cache",
    ),
    "since 0.22",
)
FLAT_RECORDS = Has("_indexer_k_is_c4a_block_flat", "later releases")
"""The function that chooses the layout in which the indexer's reader reads."""

# KV connectors.
CONNECTED_STATES = Has("resolve_mamba_align_size", "later releases")
"""Before, the scheduler of OffloadingConnector asserts that no state comes from a connector."""
OFFLOADING_SCHEDULER = Renamed((f"{CONNECTORS}.offloading.scheduler",))
PAGES_OF_STATES = Has(f"{CONNECTORS}.offloading.canonical_mapping", "since 0.27")
"""The layer of a state is one tensor, and no list of its parts."""
KV_PLANNING = Renamed(("vllm.v1.core.kv_cache_planning", "vllm.v1.core.kv_cache_utils"))
SHARED_MEMORY = Has("shared_by", "up to 0.29")
"""Memory of layers by name. Since 0.30 all layers are places in one allocation."""
CACHE_LAYOUT = Has("kv_cache_layout", "later releases")
"""The engine core resolves the layout of caches before any connector is made."""
LOADS_FIRST = Has("has_sync_kv_loads", "later releases")
"""A step without loads that it waits for starts its loads after the forward."""
TRANSFER_RESULTS = Has("get_transfer_results", "later releases")
"""A worker tells of ended and failed transfers at once."""
HANDSHAKE_BY_STAGE = Has("set_xfer_handshake_metadata_pp_aware", "later releases")
DRIVER_COPY = Has("_batch_memcpy_fn", "up to 0.32")
"""The driver's batched copy alone. Since 0.33 it is a pair with its version."""
PINNED = (
    Has("PIN_MEMORY", "some releases"),
    Has("is_pin_memory_available", "the others"),
)
"""Whether memory of the host is pinned: a constant, or a function."""
COPY_FROM_HOST = Has("swap_blocks_batch", "since 0.24")
"""A Triton kernel copies small pages from the host."""
BARRIER_OF_WORKERS = Has("_all_workers_barrier", "later releases")
