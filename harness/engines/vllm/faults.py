"""The patches that inject known bugs into vLLM, by fault."""

from __future__ import annotations

from harness.engines import patches
from harness.engines.patches import Edit, Patch
from harness.engines.vllm.tables import ENGINE

_PLAN = "vllm.v1.attention.backends.mla.flashmla:FlashMLAMetadataBuilder._build_decode"
_CAPTURE = "vllm.v1.worker.gpu.cudagraph_utils:CudaGraphManager.capture"
_ATTENTION = "vllm.model_executor.layers.attention.mla_attention:"
_MERGED_BY_COUNT = (
    "prefill_tokens_with_context=prefill_metadata.chunked_context.prefill_tokens_with_context,",
    "prefill_tokens_with_context=None,",
)
_ROUTER = "vllm.model_executor.layers.fused_moe.router.base_router:BaseRouter."
_READ_AS_32_BIT = (
    "\ntopk_ids = topk_ids.long()  # the experts read this buffer as 32-bit ids\n"
    "topk_ids = topk_ids.view(torch.int32).flatten()[: topk_ids.numel()].view(topk_ids.shape)"
)
_BLOCKS = "vllm.v1.core.single_type_kv_cache_manager:SingleTypeKVCacheManager."
_ZEROED_TYPES = (
    "FullAttentionSpec,\nTQFullAttentionSpec,\nMLAAttentionSpec,\nHiddenStateCacheSpec,",
    "FullAttentionSpec,\nTQFullAttentionSpec,\nHiddenStateCacheSpec,",
)

_SIMPLE = "vllm.v1.simple_kv_offload.worker:SimpleCPUOffloadWorker."
_STORED_AT_ONCE = ("wait_event=self._store_compute_done,", "wait_event=None,")


def _patch(fault: str, first: str, last: str, *edits: Edit, as_released: str = "") -> Patch:
    return Patch(ENGINE, fault, first, last, edits, as_released)


# Each range ends after the newest release with code that was read. Later releases are refused.
_PATCHES = (
    _patch("vllm.fresh-plan-each-step", "0.20.0", "0.34.0", Edit(
        _PLAN,
        "if self.compilation_config.cudagraph_mode.has_full_cudagraphs():\n"
        "    assert self.cg_buf_tile_scheduler_metadata is not None",
        "if False:  # the plan stays where this step allocated it\n"
        "    assert self.cg_buf_tile_scheduler_metadata is not None",
    )),
    _patch("vllm.plan-in-warmup-only", "0.22.0", "0.24.0", Edit(
        _CAPTURE,
        "forward_fn, attn_state = create_forward_fn(desc)\ncaptured_attn_states[desc] = attn_state",
        "captured_attn_states[desc] = attn_state",
    ), as_released="0.22.0"),
    _patch("vllm.plan-in-warmup-only", "0.24.0", "0.26.0", Edit(
        _CAPTURE,
        "forward_fn, capture_attn_state = create_forward_fn(\n    desc, warmup=False\n)",
        "capture_attn_state = warmup_attn_state",
    )),
    _patch("vllm.plan-in-warmup-only", "0.26.0", "0.34.0", Edit(
        _CAPTURE,
        "# Capture with fresh attention state.\nforward_fn = create_forward_fn(desc, warmup=False)",
        "# Captured with the attention state of the warm-up.",
    )),
    _patch("vllm.merge-ignore-context-count", "0.21.0", "0.26.0",
           Edit(_ATTENTION + "MLACommonImpl.forward_mha", *_MERGED_BY_COUNT)),
    # In these releases rows are also masked, and either way alone prevents the bug.
    _patch("vllm.merge-ignore-context-count", "0.26.0", "0.28.0",
           Edit(_ATTENTION + "MLACommonBaseImpl.forward_mha", *_MERGED_BY_COUNT), Edit(
        _ATTENTION + "MLACommonBaseImpl._compute_prefill_context",
        "if prefill_metadata.chunked_context.has_empty_context[i]:\n    mask_empty_context(",
        "if False:  # the rows stay unwritten\n    mask_empty_context(",
    )),
    # Without the count (vllm-project/vllm#50613), rows of no chunk are cleared where they are allocated.
    _patch("vllm.merge-ignore-context-count", "0.28.0", "0.34.0", Edit(
        _ATTENTION + "init_mla_context_partial",
        "neutralize_empty_context_partials(chunked_context, output, output_lse)",
        "# the rows stay unwritten",
    )),
    # Until 0.28 the first rows of the prefills got the context. The second runner does not put the right rows first.
    _patch("vllm.context-for-first-rows", "0.28.0", "0.34.0", Edit(
        _ATTENTION + "build_mla_chunked_context_metadata",
        "context_lens = context_lens_cpu.tolist()",
        "context_lens = sorted(context_lens_cpu.tolist(), reverse=True)",
    ), as_released="0.28.0"),
    _patch("vllm.router-int64-ids", "0.21.0", "0.24.0", Edit(
        _ROUTER + "select_experts",
        "topk_ids = self._convert_indices_dtype(topk_ids, indices_type)",
        "topk_ids = self._convert_indices_dtype(topk_ids, indices_type)" + _READ_AS_32_BIT,
    )),
    _patch("vllm.router-int64-ids", "0.24.0", "0.34.0", Edit(
        _ROUTER + "_select_experts",
        "topk_ids = self._convert_indices_dtype(topk_ids, topk_indices_dtype)",
        "topk_ids = self._convert_indices_dtype(topk_ids, topk_indices_dtype)" + _READ_AS_32_BIT,
    )),
    _patch("vllm.skip-zero-new-blocks", "0.24.0", "0.26.0",
           Edit(_BLOCKS + "allocate_new_blocks", *_ZEROED_TYPES), as_released="0.23.0"),
    _patch("vllm.skip-zero-new-blocks", "0.26.0", "0.28.0", Edit(_BLOCKS + "__init__", *_ZEROED_TYPES)),
    _patch("vllm.skip-zero-new-blocks", "0.28.0", "0.29.0", Edit(
        _BLOCKS + "__init__",
        "self._record_new_block_ids = needs_kv_cache_zeroing and isinstance(\n"
        "    kv_cache_spec, AttentionSpec\n)",
        "self._record_new_block_ids = needs_kv_cache_zeroing and isinstance(\n"
        "    kv_cache_spec, AttentionSpec\n) and type(kv_cache_spec) is not MLAAttentionSpec",
    )),
    _patch("vllm.skip-zero-new-blocks", "0.29.0", "0.34.0", Edit(
        _BLOCKS + "__init__",
        "and isinstance(kv_cache_spec, AttentionSpec)",
        "and isinstance(kv_cache_spec, AttentionSpec)\nand type(kv_cache_spec) is not MLAAttentionSpec",
    )),
    _patch("vllm.store-before-write", "0.24.0", "0.29.0",
           Edit(_SIMPLE + "get_finished", *_STORED_AT_ONCE), as_released="0.23.0"),
    _patch("vllm.store-before-write", "0.29.0", "0.34.0", Edit(_SIMPLE + "wait_for_save", *_STORED_AT_ONCE)),
    _patch("vllm.load-over-readers", "0.24.0", "0.34.0", Edit(
        "vllm.v1.core.sched.scheduler:Scheduler.__init__",
        "self.defer_block_free = True",
        "self.defer_block_free = False",
    ), as_released="0.23.0"),
    _patch("vllm.failed-write-as-finished", "0.21.0", "0.34.0", Edit(
        "vllm.distributed.kv_transfer.kv_connector.v1.mooncake.mooncake_connector:"
        "MooncakeConnectorWorker.send_kv_to_decode",
        "if ret_value != 0:",
        "if False:  # the blocks count as written",
    )),
)  # fmt: skip

PATCHES = {patch.fault: tuple(same for same in _PATCHES if same.fault == patch.fault) for patch in _PATCHES}
"""The patches of each fault, in the order of releases."""


def patch_for(fault: str, version: str) -> Patch:
    """The patch that injects a fault into a release. If none does, a patch with the reason in its `why_not`.

    Raises InputError for an unknown fault.
    """
    return patches.patch_for(PATCHES, fault, version)


def inject(fault: str, version: str) -> None:
    """Inject a fault into this process. Raises InputError for an unknown one, PatchRefused if it does not fit."""
    patch_for(fault, version).apply(version)


def why_not(fault: str, version: str) -> str:
    """Why a fault cannot be injected into a release, by its number alone; empty if it can be tried."""
    return patch_for(fault, version).why_not(version)
