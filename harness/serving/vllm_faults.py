"""The table of vLLM's bugs that can be put back, by fault name."""

from __future__ import annotations

from harness.errors import InputError
from harness.registry import nearest
from harness.serving.patches import Edit, Patch
from harness.serving.settings import FAULT_VARIABLE

_PLAN = "vllm.v1.attention.backends.mla.flashmla:FlashMLAMetadataBuilder._build_decode"
_CAPTURE = "vllm.v1.worker.gpu.cudagraph_utils:CudaGraphManager.capture"
_MERGE = "vllm.model_executor.layers.attention.mla_attention:MLACommonImpl.forward_mha"
_ROUTER = "vllm.model_executor.layers.fused_moe.router.base_router:BaseRouter."
_WORDS = (
    "\ntopk_ids = topk_ids.long()  # and who reads them takes the buffer for one of 32-bit ids\n"
    "topk_ids = topk_ids.view(torch.int32).flatten()[: topk_ids.numel()].view(topk_ids.shape)\n"
)
_BLOCKS = "vllm.v1.core.single_type_kv_cache_manager:SingleTypeKVCacheManager.allocate_new_blocks"

PATCHES: dict[str, tuple[Patch, ...]] = {
    "vllm.fresh-plan-each-step": (
        Patch(
            "vllm.fresh-plan-each-step", "0.20.0", "0.25.0",
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
    ),
    "vllm.plan-in-warmup-only": (
        Patch(
            "vllm.plan-in-warmup-only", "0.22.0", "0.24.0",
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
            "vllm.plan-in-warmup-only", "0.24.0", "0.25.0",
            (
                Edit(
                    _CAPTURE,
                    "forward_fn, capture_attn_state = create_forward_fn(\n    desc, warmup=False\n)\n",
                    "capture_attn_state = warmup_attn_state\n",
                ),
            ),
        ),
    ),
    "vllm.merge-ignore-context-count": (
        Patch(
            "vllm.merge-ignore-context-count", "0.21.0", "0.25.0",
            (
                Edit(
                    _MERGE,
                    "prefill_tokens_with_context=prefill_metadata.chunked_context.prefill_tokens_with_context,\n",
                    "prefill_tokens_with_context=None,\n",
                ),
            ),
        ),
    ),
    "vllm.router-int64-ids": (
        Patch(
            "vllm.router-int64-ids", "0.21.0", "0.24.0",
            (
                Edit(
                    _ROUTER + "select_experts",
                    "topk_ids = self._convert_indices_dtype(topk_ids, indices_type)\n",
                    "topk_ids = self._convert_indices_dtype(topk_ids, indices_type)" + _WORDS,
                ),
            ),
        ),
        Patch(
            "vllm.router-int64-ids", "0.24.0", "0.25.0",
            (
                Edit(
                    _ROUTER + "_select_experts",
                    "topk_ids = self._convert_indices_dtype(topk_ids, topk_indices_dtype)\n",
                    "topk_ids = self._convert_indices_dtype(topk_ids, topk_indices_dtype)" + _WORDS,
                ),
            ),
        ),
    ),
    "vllm.skip-zero-new-blocks": (
        Patch(
            "vllm.skip-zero-new-blocks", "0.24.0", "0.25.0",
            (
                Edit(
                    _BLOCKS,
                    "FullAttentionSpec,\nTQFullAttentionSpec,\nMLAAttentionSpec,\nHiddenStateCacheSpec,\n",
                    "FullAttentionSpec,\nTQFullAttentionSpec,\nHiddenStateCacheSpec,\n",
                ),
            ),
            as_released="0.23.0",
        ),
    ),
}  # fmt: skip


def put_back(fault: str, version: str) -> None:
    """Put one of vLLM's own bugs back in this process. Raises InputError where there is none of this name, and
    PatchRefused where vLLM's code is another."""
    if fault not in PATCHES:
        raise InputError(f"{FAULT_VARIABLE}={fault!r}: unknown fault; {nearest(fault, list(PATCHES))}")
    patches = PATCHES[fault]
    fitting = [patch for patch in patches if patch.why_not(version) is None]
    (fitting or list(patches))[0].apply(version)


def why_not(fault: str, version: str) -> str | None:
    """Why a fault is not put back in a release, by its number alone; None where it can be tried."""
    reasons = [patch.why_not(version) for patch in PATCHES[fault]]
    return None if None in reasons else reasons[0]
