"""Faults of rows: empty sides of merges, expert ids, scales that rows share. No torch here."""

from __future__ import annotations

from harness.core.fault_spec import FaultSpec

ROW_FAULTS: tuple[FaultSpec, ...] = (
    # Empty context rows, units of an lse and borders of batches.
    FaultSpec(
        "merge.assume-minus-inf",
        "vllm-project/vllm#15492",
        "the merge takes -inf alone for an empty side, and the backend writes +inf",
        "harness.kernels.torch.merge:has_no_keys",
        "harness.engine.faults.context_merge:minus_inf_only",
    ),
    FaultSpec(
        "merge.both-sides-empty",
        "vllm-project/vllm#27491",
        "with both sides empty, -inf - -inf makes an lse of NaN, which stays",
        "harness.kernels.torch.merge:common_shift",
        "harness.engine.faults.context_merge:unguarded_shift",
    ),
    FaultSpec(
        "merge.zero-weight-times-stale",
        "flashinfer-ai/flashinfer#4975",
        "the output of an empty side is unwritten, and weighed with 0",
        "harness.kernels.torch.merge:select_sides",
        "harness.engine.faults.context_merge:weigh_all",
    ),
    FaultSpec(
        "merge.prefix-strides-for-suffix",
        "local-inference-lab/vllm#17",
        "the merge reads the suffix with the prefix's strides, which differ from the second merge on",
        "harness.kernels.torch.merge:suffix_as_stored",
        "harness.engine.faults.context_merge:suffix_by_prefix_strides",
    ),
    FaultSpec(
        "context.stale-lse-of-empty-rows",
        "sgl-project/sglang#22688",
        "rows without keys in a context chunk keep the lse that memory held",
        "harness.kernels.torch.context:mark_empty_rows",
        "harness.engine.faults.context_merge:lse_left_stale",
    ),
    FaultSpec(
        "merge.lse-base-2",
        "vllm-project/vllm#52796",
        "a backend's base-2 lse is merged as a natural one: context and suffix get wrong weights",
        "harness.kernels.torch.context:natural_log",
        "harness.engine.faults.context_merge:lse_of_base_2",
    ),
    FaultSpec(
        "merge.untransposed-lse",
        "vllm-project/vllm#26397",
        "a backend's lse by token is read as one by head",
        "harness.kernels.torch.context:by_head",
        "harness.engine.faults.context_merge:reshaped_lse",
    ),
    FaultSpec(
        "context.rank-without-kv-lse-zero",
        "vllm-project/vllm#38416",
        "a context-parallel rank without keys adds an lse of 0 instead of -inf",
        "harness.engine.context_ranks:rank_without_kv",
        "harness.engine.faults.context_merge:zero_lse",
    ),
    FaultSpec(
        "batch.decode-prefill-border",
        "vllm-project/vllm#14253",
        "prompts of a mixed batch are given the latents of its decodes",
        "harness.engine.attention:rows_of_prompts",
        "harness.engine.faults.context_merge:latents_from_the_front",
    ),
    FaultSpec(
        "batch.prefills-by-tokens",
        "vllm-project/vllm#47381",
        "prompts are ordered by tokens alone: a short fresh one gets the merge, a longer chunk loses its context",
        "harness.engine.batch:prompts_in_order",
        "harness.engine.faults.context_merge:fewest_tokens_first",
    ),
    # Expert ids of padding, of NaN, of other ranks.
    FaultSpec(
        "router.unmasked-padding-ids",
        "sgl-project/sglang#28378",
        "expert ids of padded tokens, which the router did not write, are not masked",
        "harness.engine.experts:mask_padding",
        "harness.engine.faults.expert_routing:padding_unmasked",
    ),
    FaultSpec(
        "router.duplicates-from-nan-rows",
        "vllm-project/vllm#39593",
        "a top-k by greater-than gives a token of NaN the same expert k times",
        "harness.kernels.torch.route:top_experts",
        "harness.engine.faults.expert_routing:top_by_greater_than",
    ),
    FaultSpec(
        "router.minus-one-from-the-end",
        "vllm-project/vllm#46408",
        "id -1, an expert of another rank, is taken to be the last of this one",
        "harness.engine.experts:present_experts",
        "harness.engine.faults.expert_routing:ids_from_the_end",
    ),
    # Scales of blocks, of padded batches, of checkpoints.
    FaultSpec(
        "scale.unwritten-fp4-padding",
        "vllm-project/vllm#38148",
        "rows that round an FP4 scale tensor up to whole tiles are not written",
        "harness.kernels.torch.blocks:empty_scales",
        "harness.engine.faults.block_scales:scales_unwritten",
    ),
    FaultSpec(
        "scale.row-groups-mix-rows",
        "flashinfer-ai/flashinfer#3057",
        "a block's scale is reduced over the rows of a warp, padding among them",
        "harness.kernels.torch.blocks:block_amax",
        "harness.engine.faults.block_scales:amax_of_row_groups",
    ),
    FaultSpec(
        "scale.orphan-rows-to-expert-zero",
        "flashinfer-ai/flashinfer#3574",
        "rows of no expert are quantized as expert 0's",
        "harness.kernels.torch.blocks:scale_rows",
        "harness.engine.faults.block_scales:orphans_to_expert_zero",
    ),
    FaultSpec(
        "scale.dp-padding-in-amax",
        "sgl-project/sglang#26133",
        "the fp8 scale covers rows that pad a data-parallel rank to the longest",
        "harness.engine.quantize:rows_of_this_rank",
        "harness.engine.faults.block_scales:all_rows_of_all_ranks",
    ),
    FaultSpec(
        "scale.sentinel-never-replaced",
        "vllm-project/vllm-omni#5262",
        "a scale that the checkpoint lacks stays what it was before loading",
        "harness.engine.cache_scales:settled",
        "harness.engine.faults.block_scales:sentinel_as_scale",
    ),
)
