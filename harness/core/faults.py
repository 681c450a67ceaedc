"""The tables of faults: known bugs of the past, where each is injected, and what it runs there."""

from __future__ import annotations

from harness.core.fault_spec import FaultSpec

_TABLE = """
# Merges of partial attentions: empty sides, units, order.
merge.ignore-context-count vllm-project/vllm#36540
    the merge reads prefix rows of tokens that have no context
    harness.kernels.torch.merge:merge_attn_states -> harness.engine.faults.context_merge:merge_all_tokens
merge.empty-lse-finite vllm-project/vllm#49294
    rows without keys in a context chunk get a finite lse, so their unwritten output is merged
    harness.kernels.torch.context:empty_row_lse -> harness.engine.faults.context_merge:finite_lse
merge.assume-minus-inf vllm-project/vllm#15492
    the merge takes -inf alone for an empty side, and the backend writes +inf
    harness.kernels.torch.merge:has_no_keys -> harness.engine.faults.context_merge:minus_inf_only
merge.both-sides-empty vllm-project/vllm#27491
    with both sides empty, -inf - -inf makes an lse of NaN, which stays
    harness.kernels.torch.merge:common_shift -> harness.engine.faults.context_merge:unguarded_shift
merge.zero-weight-times-stale flashinfer-ai/flashinfer#4975
    the output of an empty side is unwritten, and weighed with 0
    harness.kernels.torch.merge:select_sides -> harness.engine.faults.context_merge:weigh_all
merge.prefix-strides-for-suffix local-inference-lab/vllm#17
    the merge reads the suffix with the prefix's strides, which differ from the second merge on
    harness.kernels.torch.merge:suffix_as_stored -> harness.engine.faults.context_merge:suffix_by_prefix_strides
context.stale-lse-of-empty-rows sgl-project/sglang#22688
    rows without keys in a context chunk keep the lse that memory held
    harness.kernels.torch.context:mark_empty_rows -> harness.engine.faults.context_merge:lse_left_stale
merge.lse-base-2 vllm-project/vllm#52796
    a backend's base-2 lse is merged as a natural one: context and suffix get wrong weights
    harness.kernels.torch.context:natural_log -> harness.engine.faults.context_merge:lse_of_base_2
merge.untransposed-lse vllm-project/vllm#26397
    a backend's lse by token is read as one by head
    harness.kernels.torch.context:by_head -> harness.engine.faults.context_merge:reshaped_lse
context.rank-without-kv-lse-zero vllm-project/vllm#38416
    a context-parallel rank without keys adds an lse of 0 instead of -inf
    harness.engine.context_ranks:rank_without_kv -> harness.engine.faults.context_merge:zero_lse
batch.decode-prefill-border vllm-project/vllm#14253
    prompts of a mixed batch are given the latents of its decodes
    harness.engine.attention:rows_of_prompts -> harness.engine.faults.context_merge:latents_from_the_front
batch.prefills-by-tokens vllm-project/vllm#47381
    prompts are ordered by tokens alone: a short fresh one gets the merge, a longer chunk loses its context
    harness.engine.batch:prompts_in_order -> harness.engine.faults.context_merge:fewest_tokens_first
# Expert ids of padding, of NaN, of other ranks.
router.int64-ids vllm-project/vllm#38359
    32-bit expert ids are written into a 64-bit buffer and read as 32-bit ones
    harness.engine.experts:hand_over_ids -> harness.engine.faults.expert_routing:ids_in_int64_buffer
router.unmasked-padding-ids sgl-project/sglang#28378
    expert ids of padded tokens, which the router did not write, are not masked
    harness.engine.experts:mask_padding -> harness.engine.faults.expert_routing:padding_unmasked
router.duplicates-from-nan-rows vllm-project/vllm#39593
    a top-k by greater-than gives a token of NaN the same expert k times
    harness.kernels.torch.route:top_experts -> harness.engine.faults.expert_routing:top_by_greater_than
router.minus-one-from-the-end vllm-project/vllm#46408
    id -1, an expert of another rank, is taken to be the last of this one
    harness.engine.experts:present_experts -> harness.engine.faults.expert_routing:ids_from_the_end
# Scales of blocks, of padded batches, of checkpoints.
scale.unwritten-fp4-padding vllm-project/vllm#38148
    rows that round an FP4 scale tensor up to whole tiles are not written
    harness.kernels.torch.blocks:empty_scales -> harness.engine.faults.block_scales:scales_unwritten
scale.row-groups-mix-rows flashinfer-ai/flashinfer#3057
    a block's scale is reduced over the rows of a warp, padding among them
    harness.kernels.torch.blocks:block_amax -> harness.engine.faults.block_scales:amax_of_row_groups
scale.orphan-rows-to-expert-zero flashinfer-ai/flashinfer#3574
    rows of no expert are quantized as expert 0's
    harness.kernels.torch.blocks:scale_rows -> harness.engine.faults.block_scales:orphans_to_expert_zero
scale.dp-padding-in-amax sgl-project/sglang#26133
    the fp8 scale covers rows that pad a data-parallel rank to the longest
    harness.engine.quantize:rows_of_this_rank -> harness.engine.faults.block_scales:all_rows_of_all_ranks
scale.sentinel-never-replaced vllm-project/vllm-omni#5262
    a scale that the checkpoint lacks stays what it was before loading
    harness.engine.cache_scales:settled -> harness.engine.faults.block_scales:sentinel_as_scale
# Blocks that change hands between layers of different types.
kv.tail-masked-by-multiply flashinfer-ai/flashinfer#941
    unused KV slots are masked in the scores only: 0 times NaN reaches live rows
    harness.kernels.torch.decode:mask_unused_values -> harness.engine.faults.shared_pools:values_as_loaded
kv.skip-zero-new-blocks vllm-project/vllm#43961
    blocks newly given to MLA layers of a hybrid model are not zeroed
    harness.engine.schedule.zeroing:groups_to_zero -> harness.engine.faults.shared_pools:skip_attention_blocks
kv.runner-ignores-zero-list vllm-project/vllm#43990
    the runner never looks at the scheduler's list of blocks to zero
    harness.engine.memory:zero_listed_blocks -> harness.engine.faults.shared_pools:ignore_zero_list
kv.zero-gate-by-exact-type vllm-project/vllm#47574
    pages are zeroed in models with states only, not where layers store different types
    harness.engine.schedule.zeroing:groups_to_zero -> harness.engine.faults.shared_pools:gate_by_kind
kv.states-zeroed-only vllm-project/vllm#35219
    new blocks of states are zeroed, new pages are not
    harness.engine.schedule.zeroing:groups_to_zero -> harness.engine.faults.shared_pools:zero_states_only
kv.null-block-unchecked ovg-project/kvcached#398
    the null block is whichever the allocator gives first, and block 0 goes to a request
    harness.engine.schedule.block_pool:blocks_to_give -> harness.engine.faults.shared_pools:reserve_unchecked
# Prefix caches and sliding windows.
prefix.hit-before-written vllm-project/vllm#50283
    pages enter the prefix cache when they are scheduled, before anything is written
    harness.engine.schedule.scheduler:written_tokens -> harness.engine.faults.prefix_cache:tokens_scheduled
window.evicted-blocks-in-table vllm-project/vllm#42273
    blocks that left the window stay in the block table after they are given back
    harness.engine.schedule.scheduler:forget_evicted -> harness.engine.faults.prefix_cache:keep_evicted
# Token lists of sparse attention.
sparse.invalid-index-clamped vllm-project/vllm#57156
    an index of -1 loads slot 0, and only the scores are masked
    harness.kernels.torch.sparse:load_chosen -> harness.engine.faults.sparse_decode:load_clamped
sparse.topk-from-unwritten vllm-project/vllm#49896
    the top-k reads scores that are not written, and leaves positions as memory was
    harness.engine.token_selection:take_topk -> harness.engine.faults.sparse_decode:topk_by_threshold
sparse.padding-overwrites-prefill vllm-project/vllm#32175
    padded top-k rows of decodes are stored over the rows of prompts
    harness.engine.token_selection:store_decode_rows -> harness.engine.faults.sparse_decode:store_whole_tiles
# Rows that a speculative step verifies.
verify.nan-row-to-vocab-size vllm-project/vllm#53029
    a row of NaN gives a token past the end of the vocabulary
    harness.engine.verification:greedy_tokens -> harness.engine.faults.verify_rows:token_above_all
# Indices that are too narrow, clipped or negative.
index.page-offset-32-bit flashinfer-ai/flashinfer#3136
    the offset of a page is formed in 32 bits and wraps in a large pool
    harness.kernels.torch.decode:page_offsets -> harness.engine.faults.index_width:offsets_in_32_bits
index.block-ids-clipped vllm-project/tpu-inference#2366
    ids of state blocks past the end are clipped, and requests share a state
    harness.engine.linear_attention:state_rows -> harness.engine.faults.index_width:clipped_rows
index.slot-minus-one-wraps vllm-project/vllm#43869
    slot -1 of padding is taken to be the last slot of the last block
    harness.kernels.torch.write:stored_slots -> harness.engine.faults.index_width:slots_from_the_end
# Padded requests.
decode.zero-length-row-nan vllm-project/vllm#57017
    the combine step of decode divides 0 by 0 in rows of empty requests
    harness.kernels.torch.decode:divide_by_sum -> harness.engine.faults.padded_requests:divide_without_guard
graph.padded-rows-in-amax vllm-project/vllm#37442
    the fp8 scale of activations covers rows of graph padding, which decode never writes
    harness.engine.quantize:rows_of_amax -> harness.engine.faults.padded_requests:all_rows
plan.padded-row-block-minus-one vllm-project/vllm#35431
    block tables of padded requests hold -1, which a kernel uses as an offset
    harness.engine.batch:pad_requests -> harness.engine.faults.padded_requests:block_minus_one
pad.slots-of-last-replay sgl-project/sglang#24743
    padded tokens of window layers keep the slots of the replay before
    harness.engine.batch:reset_padded_slots -> harness.engine.faults.padded_requests:reset_full_layers_only
pad.state-guard-below-zero vllm-project/vllm#39064
    a guard for block -1 takes padded requests with block 0 for live ones
    harness.engine.linear_attention:owns_state -> harness.engine.faults.padded_requests:from_block_zero_on
pad.length-one-reads-null-block vllm-project/vllm#38436
    padded requests have one key, which is read from a null block that need not be finite
    harness.engine.batch:pad_requests -> harness.engine.faults.padded_requests:one_key_each
pad.shared-trash-slot huggingface/transformers#46765
    padded tokens are stored in the block that block tables are padded with
    harness.engine.runner:trash_block -> harness.engine.faults.padded_requests:null_block_as_trash
# Dummy batches.
write_kv.slot-zero-for-padding vllm-project/vllm#39444
    padded and dummy tokens are stored in slot 0, inside the null block
    harness.engine.batch:padding_slot -> harness.engine.faults.dummy_batches:slot_zero
pad.private-slot-copy vllm-project/vllm-ascend#15417
    a backend copies the slots before a dummy step clears them
    harness.engine.batch:fill_dummy -> harness.engine.faults.dummy_batches:build_then_clear
null.warmup-writes-slot-zero vllm-project/vllm#38719
    warm-ups and dummy batches store their tokens in slot 0
    harness.engine.batch:dummy_slots -> harness.engine.faults.dummy_batches:zeroed_slots
# Memory of captured graphs.
graph.shared-pool-overwrite vllm-project/vllm#53488
    logits are read from graph memory after the drafter's graph ran in the same pool
    harness.engine.runner:take_logits -> harness.engine.faults.graph_memory:borrow_logits
graph.workspace-grows vllm-project/vllm#45487
    a workspace grows after a capture, and the graph keeps the memory that was freed
    harness.engine.workspace:Workspace.counters -> harness.engine.faults.graph_memory:counters_that_grow
graph.workspace-in-pool ROCm/aiter#5393
    a workspace is first made inside a capture, in memory that the pool uses again
    harness.engine.workspace:Workspace.counters -> harness.engine.faults.graph_memory:counters_made_in_a_capture
graph.buffers-by-request-limit vllm-project/vllm#41016
    a buffer has room for the requests at once, and graphs are larger
    harness.engine.workspace:num_counters -> harness.engine.faults.graph_memory:request_limit
graph.rebuilt-metadata sgl-project/sglang#26019
    the block table of a replay is a new tensor, and the captured one stays zero
    harness.engine.batch:put_table -> harness.engine.faults.graph_memory:replace_table
# Plans of decodes.
graph.fresh-plan-each-step vllm-project/vllm#35175
    each step makes a new split-KV plan, and the captured graph keeps reading the first one
    harness.engine.capture:update_plan -> harness.engine.faults.decode_plans:rebind_plan
graph.plan-in-warmup-only vllm-project/vllm#42444
    warm-up and capture share their metadata, so the planning is not in the graph
    harness.engine.capture:metadata_for_capture -> harness.engine.faults.decode_plans:share_warmup_metadata
plan.surplus-blocks flashinfer-ai/flashinfer#4002
    a plan fills in the items that have work, and the whole grid reads it
    harness.kernels.torch.plan:write_items -> harness.engine.faults.decode_plans:write_items_in_use
plan.split-count-of-capture vllm-project/vllm#20301
    scratch has room for as many pieces as the captured plan had
    harness.kernels.torch.plan:scratch_room -> harness.engine.faults.decode_plans:room_for_this_plan
plan.wrong-element-size vllm-project/vllm#38719
    pieces of work are cut for a bfloat16 cache, whatever its type
    harness.engine.kernels:planned_itemsize -> harness.engine.faults.decode_plans:itemsize_of_bfloat16
workspace.dirty-counters vllm-project/vllm#25520
    counters that have to be zero lie in scratch that others leave dirty
    harness.engine.workspace:Workspace.counters -> harness.engine.faults.decode_plans:counters_in_scratch
"""
"""Faults of the engine and of its kernels. A fault has three lines: its name and upstream reference, one sentence, and
`target -> replacement`."""


def _row(head: str, summary: str, change: str) -> FaultSpec:
    name, ref = head.split()
    target, replacement = change.split(" -> ")
    return FaultSpec(name, ref, summary, target, replacement)


def _rows(table: str) -> tuple[FaultSpec, ...]:
    lines = [line.strip() for line in table.splitlines() if line and not line.startswith("#")]
    return tuple(_row(*three) for three in zip(lines[::3], lines[1::3], lines[2::3], strict=True))


FAULT_SPECS = _rows(_TABLE)

VLLM_FAULTS = (
    FaultSpec(
        "vllm.fresh-plan-each-step",
        "vllm-project/vllm#35175",
        "vLLM itself: FP8 FlashMLA plans at a new address each step; the graph keeps the first",
    ),
    FaultSpec(
        "vllm.plan-in-warmup-only",
        "vllm-project/vllm#42444",
        "vLLM itself: capture reuses the warm-up's lazy plan, so planning is not in the graph",
    ),
    FaultSpec(
        "vllm.merge-ignore-context-count",
        "vllm-project/vllm#36540",
        "vLLM itself: the merge reads context rows that no kernel wrote",
    ),
    FaultSpec(
        "vllm.context-for-first-rows",
        "vllm-project/vllm#50613",
        "vLLM itself: the first prefills of a batch get the context, whichever of them have one",
    ),
    FaultSpec(
        "vllm.router-int64-ids",
        "vllm-project/vllm#38359",
        "vLLM itself: 64-bit expert ids are read as 32-bit ones by the experts",
    ),
    FaultSpec(
        "vllm.skip-zero-new-blocks",
        "vllm-project/vllm#43961",
        "vLLM itself: blocks newly given to MLA layers of a hybrid model are not zeroed",
    ),
)
"""Faults of vLLM itself. The process that imports vLLM injects them."""
