"""Faults of pools shared by types, prefix caches, windows, sparse lists, verified rows and widths of indices.

A part of the table in :mod:`harness.core.faults`. No torch here.
"""

from __future__ import annotations

from harness.core.fault_spec import FaultSpec

POOL_FAULTS: tuple[FaultSpec, ...] = (
    FaultSpec(
        "kv.runner-ignores-zero-list",
        "vllm-project/vllm#43990",
        "the runner never looks at the scheduler's list of blocks to zero",
        "harness.engine.memory:zero_listed_blocks",
        "harness.engine.faults.shared_pools:ignore_zero_list",
    ),
    FaultSpec(
        "kv.zero-gate-by-exact-type",
        "vllm-project/vllm#47574",
        "pages are zeroed in models with states only, not where layers store different types",
        "harness.engine.schedule.zeroing:groups_to_zero",
        "harness.engine.faults.shared_pools:gate_by_kind",
    ),
    FaultSpec(
        "kv.states-zeroed-only",
        "vllm-project/vllm#35219",
        "new blocks of states are zeroed, new pages are not",
        "harness.engine.schedule.zeroing:groups_to_zero",
        "harness.engine.faults.shared_pools:zero_states_only",
    ),
    FaultSpec(
        "kv.null-block-unchecked",
        "ovg-project/kvcached#398",
        "the null block is whichever the allocator gives first, and block 0 goes to a request",
        "harness.engine.schedule.block_pool:blocks_to_give",
        "harness.engine.faults.shared_pools:reserve_unchecked",
    ),
    FaultSpec(
        "prefix.hit-before-written",
        "vllm-project/vllm#50283",
        "pages enter the prefix cache when they are scheduled, before anything is written",
        "harness.engine.schedule.scheduler:written_tokens",
        "harness.engine.faults.prefix_cache:tokens_scheduled",
    ),
    FaultSpec(
        "window.evicted-blocks-in-table",
        "vllm-project/vllm#42273",
        "blocks that left the window stay in the block table after they are given back",
        "harness.engine.schedule.scheduler:forget_evicted",
        "harness.engine.faults.prefix_cache:keep_evicted",
    ),
    FaultSpec(
        "sparse.invalid-index-clamped",
        "vllm-project/vllm#57156",
        "an index of -1 loads slot 0, and only the scores are masked",
        "harness.kernels.torch.sparse:load_chosen",
        "harness.engine.faults.sparse_decode:load_clamped",
    ),
    FaultSpec(
        "sparse.topk-from-unwritten",
        "vllm-project/vllm#49896",
        "the top-k reads scores that are not written, and leaves positions as memory was",
        "harness.engine.token_selection:take_topk",
        "harness.engine.faults.sparse_decode:topk_by_threshold",
    ),
    FaultSpec(
        "sparse.padding-overwrites-prefill",
        "vllm-project/vllm#32175",
        "padded top-k rows of decodes are stored over the rows of prompts",
        "harness.engine.token_selection:store_decode_rows",
        "harness.engine.faults.sparse_decode:store_whole_tiles",
    ),
    FaultSpec(
        "verify.nan-row-to-vocab-size",
        "vllm-project/vllm#53029",
        "a row of NaN gives a token past the end of the vocabulary",
        "harness.engine.verification:greedy_tokens",
        "harness.engine.faults.verify_rows:token_above_all",
    ),
    FaultSpec(
        "index.page-offset-32-bit",
        "flashinfer-ai/flashinfer#3136",
        "the offset of a page is formed in 32 bits and wraps in a large pool",
        "harness.kernels.torch.decode:page_offsets",
        "harness.engine.faults.index_width:offsets_in_32_bits",
    ),
    FaultSpec(
        "index.block-ids-clipped",
        "vllm-project/tpu-inference#2366",
        "ids of state blocks past the end are clipped, and requests share a state",
        "harness.engine.linear_attention:state_rows",
        "harness.engine.faults.index_width:clipped_rows",
    ),
    FaultSpec(
        "index.slot-minus-one-wraps",
        "vllm-project/vllm#43869",
        "slot -1 of padding is taken to be the last slot of the last block",
        "harness.kernels.torch.write:stored_slots",
        "harness.engine.faults.index_width:slots_from_the_end",
    ),
)
