"""The patches that inject known bugs into vLLM, by fault."""

from __future__ import annotations

from harness.core.errors import InputError
from harness.core.registry import nearest
from harness.engines.base import release_of
from harness.engines.patches import Edit, Patch
from harness.engines.vllm.serve.settings import FAULT_VARIABLE
from harness.engines.vllm.tables import ENGINE

# Each range ends after the newest release that was read. Later ones are refused.
_PLAN = "vllm.v1.attention.backends.mla.flashmla:FlashMLAMetadataBuilder._build_decode"
_CAPTURE = "vllm.v1.worker.gpu.cudagraph_utils:CudaGraphManager.capture"
_ATTENTION = "vllm.model_executor.layers.attention.mla_attention:"
_MERGED_BY_COUNT = (
    "prefill_tokens_with_context=prefill_metadata.chunked_context.prefill_tokens_with_context,\n",
    "prefill_tokens_with_context=None,\n",
)
_ROUTER = "vllm.model_executor.layers.fused_moe.router.base_router:BaseRouter."
_WORDS = (
    "\ntopk_ids = topk_ids.long()  # and who reads them takes the buffer for one of 32-bit ids\n"
    "topk_ids = topk_ids.view(torch.int32).flatten()[: topk_ids.numel()].view(topk_ids.shape)\n"
)
_BLOCKS = "vllm.v1.core.single_type_kv_cache_manager:SingleTypeKVCacheManager."
_ZEROED_TYPES = (
    "FullAttentionSpec,\nTQFullAttentionSpec,\nMLAAttentionSpec,\nHiddenStateCacheSpec,\n",
    "FullAttentionSpec,\nTQFullAttentionSpec,\nHiddenStateCacheSpec,\n",
)

_PATCHES: tuple[Patch, ...] = (
    Patch(
        ENGINE, "vllm.fresh-plan-each-step", "0.20.0", "0.34.0",
        (
            Edit(
                _PLAN,
                "if self.compilation_config.cudagraph_mode.has_full_cudagraphs():\n"
                "    assert self.cg_buf_tile_scheduler_metadata is not None\n",
                "if False:  # the plan stays where this step allocated it\n"
                "    assert self.cg_buf_tile_scheduler_metadata is not None\n",
            ),
        ),
    ),
    Patch(
        ENGINE, "vllm.plan-in-warmup-only", "0.22.0", "0.24.0",
        (
            Edit(
                _CAPTURE,
                "forward_fn, attn_state = create_forward_fn(desc)\ncaptured_attn_states[desc] = attn_state\n",
                "captured_attn_states[desc] = attn_state\n",
            ),
        ),
        as_released="0.22.0",
    ),
    Patch(
        ENGINE, "vllm.plan-in-warmup-only", "0.24.0", "0.26.0",
        (
            Edit(
                _CAPTURE,
                "forward_fn, capture_attn_state = create_forward_fn(\n    desc, warmup=False\n)\n",
                "capture_attn_state = warmup_attn_state\n",
            ),
        ),
    ),
    Patch(
        ENGINE, "vllm.plan-in-warmup-only", "0.26.0", "0.34.0",
        (
            Edit(
                _CAPTURE,
                "# Capture with fresh attention state.\nforward_fn = create_forward_fn(desc, warmup=False)\n",
                "# Captured with the attention state of the warm-up.\n",
            ),
        ),
    ),
    Patch(
        ENGINE, "vllm.merge-ignore-context-count", "0.21.0", "0.26.0",
        (Edit(_ATTENTION + "MLACommonImpl.forward_mha", *_MERGED_BY_COUNT),),
    ),
    # Here the rows are masked as well as left out: one of the two alone would keep the bug away.
    Patch(
        ENGINE, "vllm.merge-ignore-context-count", "0.26.0", "0.28.0",
        (
            Edit(_ATTENTION + "MLACommonBaseImpl.forward_mha", *_MERGED_BY_COUNT),
            Edit(
                _ATTENTION + "MLACommonBaseImpl._compute_prefill_context",
                "if prefill_metadata.chunked_context.has_empty_context[i]:\n    mask_empty_context(\n",
                "if False:  # the rows stay as no kernel wrote them\n    mask_empty_context(\n",
            ),
        ),
    ),
    # The count is gone (vllm-project/vllm#50613): rows that no chunk covers are cleared where they are allocated.
    Patch(
        ENGINE, "vllm.merge-ignore-context-count", "0.28.0", "0.34.0",
        (
            Edit(
                _ATTENTION + "init_mla_context_partial",
                "neutralize_empty_context_partials(chunked_context, output, output_lse)\n",
                "# the rows stay as no kernel wrote them\n",
            ),
        ),
    ),
    # Until 0.28 the context went to the first rows of the prefills, which the second runner does not put first.
    Patch(
        ENGINE, "vllm.context-for-first-rows", "0.28.0", "0.34.0",
        (
            Edit(
                _ATTENTION + "build_mla_chunked_context_metadata",
                "context_lens = context_lens_cpu.tolist()\n",
                "context_lens = sorted(context_lens_cpu.tolist(), reverse=True)\n",
            ),
        ),
        as_released="0.28.0",
    ),
    Patch(
        ENGINE, "vllm.router-int64-ids", "0.21.0", "0.24.0",
        (
            Edit(
                _ROUTER + "select_experts",
                "topk_ids = self._convert_indices_dtype(topk_ids, indices_type)\n",
                "topk_ids = self._convert_indices_dtype(topk_ids, indices_type)" + _WORDS,
            ),
        ),
    ),
    Patch(
        ENGINE, "vllm.router-int64-ids", "0.24.0", "0.34.0",
        (
            Edit(
                _ROUTER + "_select_experts",
                "topk_ids = self._convert_indices_dtype(topk_ids, topk_indices_dtype)\n",
                "topk_ids = self._convert_indices_dtype(topk_ids, topk_indices_dtype)" + _WORDS,
            ),
        ),
    ),
    Patch(
        ENGINE, "vllm.skip-zero-new-blocks", "0.24.0", "0.26.0",
        (Edit(_BLOCKS + "allocate_new_blocks", *_ZEROED_TYPES),),
        as_released="0.23.0",
    ),
    Patch(
        ENGINE, "vllm.skip-zero-new-blocks", "0.26.0", "0.28.0",
        (Edit(_BLOCKS + "__init__", *_ZEROED_TYPES),),
    ),
    Patch(
        ENGINE, "vllm.skip-zero-new-blocks", "0.28.0", "0.29.0",
        (
            Edit(
                _BLOCKS + "__init__",
                "self._record_new_block_ids = needs_kv_cache_zeroing and isinstance(\n"
                "    kv_cache_spec, AttentionSpec\n)\n",
                "self._record_new_block_ids = needs_kv_cache_zeroing and isinstance(\n"
                "    kv_cache_spec, AttentionSpec\n) and type(kv_cache_spec) is not MLAAttentionSpec\n",
            ),
        ),
    ),
    Patch(
        ENGINE, "vllm.skip-zero-new-blocks", "0.29.0", "0.34.0",
        (
            Edit(
                _BLOCKS + "__init__",
                "and isinstance(kv_cache_spec, AttentionSpec)\n",
                "and isinstance(kv_cache_spec, AttentionSpec)\nand type(kv_cache_spec) is not MLAAttentionSpec\n",
            ),
        ),
    ),
)  # fmt: skip

PATCHES = {patch.fault: tuple(same for same in _PATCHES if same.fault == patch.fault) for patch in _PATCHES}
"""The patches of each fault, by release."""


def patch_for(fault: str, version: str) -> Patch:
    """The patch that injects a fault into a release, or the one with the nearest range, which says why it cannot.

    Raises InputError for a fault that has no patch.
    """
    if fault not in PATCHES:
        raise InputError(f"{FAULT_VARIABLE}={fault!r}: unknown fault; {nearest(fault, list(PATCHES))}")
    patches = PATCHES[fault]
    fitting = [patch for patch in patches if patch.why_not(version) is None]
    if fitting:
        return fitting[0]
    return patches[-1] if release_of(version) >= release_of(patches[-1].last) else patches[0]


def inject(fault: str, version: str) -> None:
    """Inject a fault into the vLLM of this process. Raises InputError without a patch, PatchRefused for other code."""
    patch_for(fault, version).apply(version)


def why_not(fault: str, version: str) -> str | None:
    """Why a fault cannot be injected into a release, by its number alone; None where it can be tried."""
    return patch_for(fault, version).why_not(version)
