"""The faults of the engine and of its kernels: known bugs that are injected on purpose. No torch here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FaultSpec:
    """A bug of the past: its name, the upstream reference, one sentence, and what it replaces by what.

    `target` is the "module:function" or "module:Class.method" with the correct code, which is marked as a seam (see
    :mod:`harness.core.seams`). `replacement` is the "module:function" that behaves as the bug did. Both are empty for
    a fault of a real engine: the process that imports the engine injects it.
    """

    name: str
    ref: str
    summary: str
    target: str = ""
    replacement: str = ""


def _fault(name: str, ref: str, target: str, summary: str, replacement: str) -> FaultSpec:
    """A row of the table. `target` starts below `harness`, `replacement` below `harness.engine.faults`."""
    return FaultSpec(name, ref, summary, f"harness.{target}", f"harness.engine.faults.{replacement}")


FAULTS: tuple[FaultSpec, ...] = (
    # Merges of partial attentions: empty sides, units, order.
    _fault("merge.ignore-context-count", "vllm-project/vllm#36540", "kernels.torch.merge:merge_attn_states",
           "the merge reads prefix rows of tokens that have no context", "attention:merge_all_tokens"),
    _fault("merge.empty-lse-finite", "vllm-project/vllm#49294", "kernels.torch.context:empty_row_lse",
           "rows without keys in a context chunk get a finite lse, so their unwritten output is merged",
           "attention:finite_lse"),
    _fault("merge.assume-minus-inf", "vllm-project/vllm#15492", "kernels.torch.merge:has_no_keys",
           "the merge takes -inf alone for an empty side, and the backend writes +inf", "attention:minus_inf_only"),
    _fault("merge.both-sides-empty", "vllm-project/vllm#27491", "kernels.torch.merge:common_shift",
           "with both sides empty, -inf - -inf makes an lse of NaN, which stays", "attention:unguarded_shift"),
    _fault("merge.zero-weight-times-stale", "flashinfer-ai/flashinfer#4975", "kernels.torch.merge:select_sides",
           "the output of an empty side is unwritten, and weighed with 0", "attention:weigh_all"),
    _fault("merge.prefix-strides-for-suffix", "local-inference-lab/vllm#17", "kernels.torch.merge:suffix_as_stored",
           "the merge reads the suffix with the prefix's strides, which differ from the second merge on",
           "attention:suffix_by_prefix_strides"),
    _fault("context.stale-lse-of-empty-rows", "sgl-project/sglang#22688", "kernels.torch.context:mark_empty_rows",
           "rows without keys in a context chunk keep the lse that memory held", "attention:lse_left_stale"),
    _fault("merge.lse-base-2", "vllm-project/vllm#52796", "kernels.torch.context:natural_log",
           "a backend's base-2 lse is merged as a natural one: context and suffix get wrong weights",
           "attention:lse_of_base_2"),
    _fault("merge.untransposed-lse", "vllm-project/vllm#26397", "kernels.torch.context:by_head",
           "a backend's lse by token is read as one by head", "attention:reshaped_lse"),
    _fault("context.rank-without-kv-lse-zero", "vllm-project/vllm#38416", "engine.attention:rank_without_kv",
           "a context-parallel rank without keys adds an lse of 0 instead of -inf", "attention:zero_lse"),
    _fault("batch.decode-prefill-border", "vllm-project/vllm#14253", "engine.attention:rows_of_prompts",
           "prompts of a mixed batch are given the latents of its decodes", "attention:latents_from_the_front"),
    _fault("batch.prefills-by-tokens", "vllm-project/vllm#47381", "engine.batch:prompts_in_order",
           "prompts are ordered by tokens alone: a short fresh one gets the merge, a longer chunk loses its context",
           "attention:fewest_tokens_first"),
    # Expert ids of padding, of NaN, of other ranks.
    _fault("router.int64-ids", "vllm-project/vllm#38359", "engine.experts:hand_over_ids",
           "32-bit expert ids are written into a 64-bit buffer and read as 32-bit ones", "experts:ids_in_int64_buffer"),
    _fault("router.unmasked-padding-ids", "sgl-project/sglang#28378", "engine.experts:mask_padding",
           "expert ids of padded tokens, which the router did not write, are not masked", "experts:padding_unmasked"),
    _fault("router.duplicates-from-nan-rows", "vllm-project/vllm#39593", "kernels.torch.route:top_experts",
           "a top-k by greater-than gives a token of NaN the same expert k times", "experts:top_by_greater_than"),
    _fault("router.minus-one-from-the-end", "vllm-project/vllm#46408", "engine.experts:present_experts",
           "id -1, an expert of another rank, is taken to be the last of this one", "experts:ids_from_the_end"),
    # Scales of blocks, of padded batches, of checkpoints.
    _fault("scale.unwritten-fp4-padding", "vllm-project/vllm#38148", "kernels.torch.quantize:empty_scales",
           "rows that round an FP4 scale tensor up to whole tiles are not written", "experts:scales_unwritten"),
    _fault("scale.row-groups-mix-rows", "flashinfer-ai/flashinfer#3057", "kernels.torch.quantize:block_amax",
           "a block's scale is reduced over the rows of a warp, padding among them", "experts:amax_of_row_groups"),
    _fault("scale.orphan-rows-to-expert-zero", "flashinfer-ai/flashinfer#3574", "kernels.torch.quantize:scale_rows",
           "rows of no expert are quantized as expert 0's", "experts:orphans_to_expert_zero"),
    _fault("scale.dp-padding-in-amax", "sgl-project/sglang#26133", "engine.kernels:rows_of_this_rank",
           "the fp8 scale covers rows that pad a data-parallel rank to the longest", "experts:all_rows_of_all_ranks"),
    _fault("scale.sentinel-never-replaced", "vllm-project/vllm-omni#5262", "engine.memory:settled",
           "a scale that the checkpoint lacks stays what it was before loading", "experts:sentinel_as_scale"),
    # Records of a cache: the writer and the reader of a token's bytes.
    _fault("records.shuffled-written-flat", "vllm-project/vllm#52109", "kernels.torch.records:shuffled_values",
           "the indexer's keys are written row by row and read in tiles of 16 x 16", "records:flat_values"),
    _fault("records.planar-read-interleaved", "vllm-project/vllm#50576", "kernels.torch.records:planar_parts",
           "blocks with the values first and the scales behind them are read token by token",
           "records:interleaved_parts"),
    _fault("records.inline-scales-by-shape", "vllm-project/vllm#49716", "kernels.torch.records:inline_scales",
           "the places of scales inside the records follow from the cache's shape, not from its strides",
           "records:scales_by_shape"),
    _fault("records.linear-scales-swizzled", "vllm-project/vllm#50084", "kernels.torch.records:linear_scales",
           "NVFP4 scales are written for SM100's attention, and another GPU reads them in order",
           "records:scales_for_another_gpu"),
    # Blocks that change hands between layers of different types.
    _fault("kv.tail-masked-by-multiply", "flashinfer-ai/flashinfer#941", "kernels.torch.decode:mask_unused_values",
           "unused KV slots are masked in the scores only: 0 times NaN reaches live rows", "memory:values_as_loaded"),
    _fault("kv.skip-zero-new-blocks", "vllm-project/vllm#43961", "engine.schedule.block_pool:groups_to_zero",
           "blocks newly given to MLA layers of a hybrid model are not zeroed", "memory:skip_attention_blocks"),
    _fault("kv.runner-ignores-zero-list", "vllm-project/vllm#43990", "engine.memory:zero_listed_blocks",
           "the runner never looks at the scheduler's list of blocks to zero", "memory:ignore_zero_list"),
    _fault("kv.zero-gate-by-exact-type", "vllm-project/vllm#47574", "engine.schedule.block_pool:groups_to_zero",
           "pages are zeroed in models with states only, not where layers store different types",
           "memory:gate_by_kind"),
    _fault("kv.states-zeroed-only", "vllm-project/vllm#35219", "engine.schedule.block_pool:groups_to_zero",
           "new blocks of states are zeroed, new pages are not", "memory:zero_states_only"),
    _fault("kv.null-block-unchecked", "ovg-project/kvcached#398", "engine.schedule.block_pool:blocks_to_give",
           "the null block is whichever the allocator gives first, and block 0 goes to a request",
           "memory:reserve_unchecked"),
    # Prefix caches and sliding windows.
    _fault("prefix.hit-before-written", "vllm-project/vllm#50283", "engine.schedule.scheduler:written_tokens",
           "pages enter the prefix cache when they are scheduled, before anything is written",
           "memory:tokens_scheduled"),
    _fault("window.evicted-blocks-in-table", "vllm-project/vllm#42273", "engine.schedule.scheduler:forget_evicted",
           "blocks that left the window stay in the block table after they are given back", "memory:keep_evicted"),
    # Token lists of sparse attention.
    _fault("sparse.invalid-index-clamped", "vllm-project/vllm#57156", "kernels.torch.decode:load_chosen",
           "an index of -1 loads slot 0, and only the scores are masked", "attention:load_clamped"),
    _fault("sparse.topk-from-unwritten", "vllm-project/vllm#49896", "engine.sparse_attention:take_topk",
           "the top-k reads scores that are not written, and leaves positions as memory was",
           "attention:topk_by_threshold"),
    _fault("sparse.padding-overwrites-prefill", "vllm-project/vllm#32175", "engine.sparse_attention:store_decode_rows",
           "padded top-k rows of decodes are stored over the rows of prompts", "attention:store_whole_tiles"),
    # Rows that a speculative step verifies.
    _fault("verify.nan-row-to-vocab-size", "vllm-project/vllm#53029", "engine.speculation:greedy_tokens",
           "a row of NaN gives a token past the end of the vocabulary", "memory:token_above_all"),
    # Indices that are too narrow, clipped or negative.
    _fault("index.page-offset-32-bit", "flashinfer-ai/flashinfer#3136", "kernels.torch.decode:page_offsets",
           "the offset of a page is formed in 32 bits and wraps in a large pool", "attention:offsets_in_32_bits"),
    _fault("index.block-ids-clipped", "vllm-project/tpu-inference#2366", "engine.attention:state_rows",
           "ids of state blocks past the end are clipped, and requests share a state", "attention:clipped_rows"),
    _fault("index.slot-minus-one-wraps", "vllm-project/vllm#43869", "kernels.torch.write:stored_slots",
           "slot -1 of padding is taken to be the last slot of the last block", "attention:slots_from_the_end"),
    # Layouts of the paged cache.
    _fault("layout.packed-pages", "vllm-project/vllm#37032", "kernels.torch.decode:pages_as_stored",
           "a decode kernel takes the size of a page for its stride, and reads pages of other layers",
           "attention:packed_pages"),
    _fault("layout.packed-pages-written", "ROCm/aiter#3492", "kernels.torch.write:pages_to_write",
           "a kernel that stores latents takes the size of a page for its stride, and writes over other layers",
           "attention:packed_pages"),
    _fault("layout.manager-block-stride", "vllm-project/vllm#51718", "kernels.torch.decode:pages_as_stored",
           "the stride of dim 0 is a page's, and is taken for the stride of a manager's block of several pages",
           "attention:page_stride_for_manager_blocks"),
    # Padded requests.
    _fault("decode.zero-length-row-nan", "vllm-project/vllm#57017", "kernels.torch.decode:divide_by_sum",
           "the combine step of decode divides 0 by 0 in rows of empty requests", "memory:divide_without_guard"),
    _fault("graph.padded-rows-in-amax", "vllm-project/vllm#37442", "engine.kernels:rows_of_amax",
           "the fp8 scale of activations covers rows of graph padding, which decode never writes", "memory:all_rows"),
    _fault("plan.padded-row-block-minus-one", "vllm-project/vllm#35431", "engine.batch:pad_requests",
           "block tables of padded requests hold -1, which a kernel uses as an offset", "memory:block_minus_one"),
    _fault("pad.slots-of-last-replay", "sgl-project/sglang#24743", "engine.batch:reset_padded_slots",
           "padded tokens of window layers keep the slots of the replay before", "memory:reset_full_layers_only"),
    _fault("pad.state-guard-below-zero", "vllm-project/vllm#39064", "engine.attention:owns_state",
           "a guard for block -1 takes padded requests with block 0 for live ones", "memory:from_block_zero_on"),
    _fault("pad.length-one-reads-null-block", "vllm-project/vllm#38436", "engine.batch:pad_requests",
           "padded requests have one key, which is read from a null block that need not be finite",
           "memory:one_key_each"),
    _fault("pad.shared-trash-slot", "huggingface/transformers#46765", "engine.runner:trash_block",
           "padded tokens are stored in the block that block tables are padded with", "memory:null_block_as_trash"),
    # Dummy batches.
    _fault("write_kv.slot-zero-for-padding", "vllm-project/vllm#39444", "engine.batch:padding_slot",
           "padded and dummy tokens are stored in slot 0, inside the null block", "memory:slot_zero"),
    _fault("pad.private-slot-copy", "vllm-project/vllm-ascend#15417", "engine.batch:fill_dummy",
           "a backend copies the slots before a dummy step clears them", "memory:build_then_clear"),
    _fault("null.warmup-writes-slot-zero", "vllm-project/vllm#38719", "engine.batch:dummy_slots",
           "warm-ups and dummy batches store their tokens in slot 0", "memory:zeroed_slots"),
    # Memory of captured graphs.
    _fault("graph.shared-pool-overwrite", "vllm-project/vllm#53488", "engine.runner:take_logits",
           "logits are read from graph memory after the drafter's graph ran in the same pool", "memory:borrow_logits"),
    _fault("graph.workspace-grows", "vllm-project/vllm#45487", "engine.kernels:Workspace.counters",
           "a workspace grows after a capture, and the graph keeps the memory that was freed",
           "memory:counters_that_grow"),
    _fault("graph.workspace-in-pool", "ROCm/aiter#5393", "engine.kernels:Workspace.counters",
           "a workspace is first made inside a capture, in memory that the pool uses again",
           "memory:counters_made_in_a_capture"),
    _fault("graph.buffers-by-request-limit", "vllm-project/vllm#41016", "engine.kernels:num_counters",
           "a buffer has room for the requests at once, and graphs are larger", "memory:request_limit"),
    _fault("graph.rebuilt-metadata", "sgl-project/sglang#26019", "engine.batch:put_table",
           "the block table of a replay is a new tensor, and the captured one stays zero", "memory:replace_table"),
    # Plans of decodes.
    _fault("graph.fresh-plan-each-step", "vllm-project/vllm#35175", "engine.capture:update_plan",
           "each step makes a new split-KV plan, and the captured graph keeps reading the first one",
           "attention:rebind_plan"),
    _fault("graph.plan-in-warmup-only", "vllm-project/vllm#42444", "engine.capture:metadata_for_capture",
           "warm-up and capture share their metadata, so the planning is not in the graph",
           "attention:share_warmup_metadata"),
    _fault("plan.surplus-blocks", "flashinfer-ai/flashinfer#4002", "kernels.torch.plan:write_items",
           "a plan fills in the items that have work, and the whole grid reads it", "attention:write_items_in_use"),
    _fault("plan.split-count-of-capture", "vllm-project/vllm#20301", "kernels.torch.plan:scratch_room",
           "scratch has room for as many pieces as the captured plan had", "attention:room_for_this_plan"),
    _fault("plan.wrong-element-size", "vllm-project/vllm#38719", "engine.kernels:planned_itemsize",
           "pieces of work are cut for a bfloat16 cache, whatever its type", "attention:itemsize_of_bfloat16"),
    _fault("workspace.dirty-counters", "vllm-project/vllm#25520", "engine.kernels:Workspace.counters",
           "counters that have to be zero lie in scratch that others leave dirty", "attention:counters_in_scratch"),
    # Caches that are moved: to a host tier and back, or to another engine.
    _fault("move.store-before-write", "vllm-project/vllm#45704", "engine.moves.host:store_waits",
           "a store does not wait for the model's stream, so blocks are copied before they are written",
           "moves:no_events"),
    _fault("move.load-over-readers", "vllm-project/vllm#47282", "engine.moves.host:load_waits",
           "a load overwrites blocks that the model's stream still reads for their last owner", "moves:no_events"),
    _fault("move.page-length-per-kernel-block", "vllm-project/vllm#54272", "engine.moves.pieces:descriptor_bytes",
           "each kernel block's descriptor has the length of the whole page, and they overlap", "moves:whole_page"),
    _fault("move.length-of-shared-base", "vllm-project/vllm#57661", "engine.moves.pieces:lengths",
           "two regions with one base address are sent with the length of the first", "moves:length_of_first"),
    _fault("move.shards-of-rank-zero", "vllm-project/vllm#49499", "engine.moves.pieces:source_rank",
           "sharded states are read from another rank, because MLA layers are replicated", "moves:rank_zero"),
    _fault("move.failed-as-finished", "vllm-project/vllm#52234", "engine.moves.handoff:has_landed",
           "a failed transfer is reported as finished, and the request is decoded", "moves:ended"),
    _fault("move.late-writer", "sgl-project/sglang#24527", "engine.moves.handoff:abort",
           "pages of an aborted request are given away while their writer goes on", "moves:forget"),
    _fault("move.host-rows-for-index", "sgl-project/sglang#31901", "engine.moves.host:device_row",
           "index keys are loaded into the device's blocks with the numbers of host blocks", "moves:host_row"),
    _fault("move.index-before-arrival", "sgl-project/sglang#22811", "engine.moves.host:awaited",
           "a step waits for the latents of a layer and reads its index keys before they arrive",
           "moves:pages_alone"),
    _fault("move.index-left-behind", "ROCm/ATOM#1807", "engine.moves.pieces:moved_regions",
           "the pages are moved and the index keys are not", "moves:all_but_the_index"),
    _fault("move.rows-for-blocks", "ROCm/ATOM#1807", "engine.moves.pieces:page_bytes",
           "the bytes of one row are moved for a block of several tokens", "moves:one_row"),
    _fault("move.fused-read-as-planes", "LMCache/LMCache#4463", "engine.moves.pieces:used_bytes",
           "K and V of a token are neighbors, and are moved as two planes", "moves:planes"),
)  # fmt: skip
