"""The table of vLLM's bugs that can be put back, by fault name."""

from __future__ import annotations

from harness.serving.patches import Edit, Patch

_PLAN = "vllm.v1.attention.backends.mla.flashmla:FlashMLAMetadataBuilder._build_decode"
_CAPTURE = "vllm.v1.worker.gpu.cudagraph_utils:CudaGraphManager.capture"
_MERGE = "vllm.model_executor.layers.attention.mla_attention:MLACommonImpl.forward_mha"
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
                Edit(
                    _MERGE,
                    "output = output.view(-1, self.num_heads, self.v_head_dim)\nmerge_attn_states(\n",
                    "output = output.view(-1, self.num_heads, self.v_head_dim)\n"
                    "_with = prefill_metadata.chunked_context.prefill_tokens_with_context\n"
                    "if _with is not None:  # as TRT-LLM's ragged kernel on Blackwell: such rows are not written\n"
                    "    context_output = torch.empty_like(context_output).index_copy_(\n"
                    "        0, torch.arange(_with, device=context_output.device), context_output[:_with])\n"
                    "    _lse = torch.empty_like(context_lse)\n"
                    "    _lse[:, :_with] = context_lse[:, :_with]\n"
                    "    context_lse = _lse\n"
                    "merge_attn_states(\n",
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
    """Put one of vLLM's own bugs back in this process. Raises PatchRefused where its code is another."""
    patches = PATCHES[fault]
    fitting = [patch for patch in patches if patch.why_not(version) is None]
    (fitting or list(patches))[0].apply(version)


def why_not(fault: str, version: str) -> str | None:
    """Why a fault is not put back in a release, by its number alone; None where it can be tried."""
    reasons = [patch.why_not(version) for patch in PATCHES[fault]]
    return None if None in reasons else reasons[0]
