"""Known bugs of padded requests, dummy batches, memory of graphs, and plans of decodes. No torch here."""

from __future__ import annotations

from harness.core.fault_spec import FaultSpec

GRAPH_FAULTS: tuple[FaultSpec, ...] = (
    FaultSpec(
        "pad.slots-of-last-replay",
        "sgl-project/sglang#24743",
        "padded tokens of window layers keep the slots of the replay before",
        "harness.engine.batch:reset_padded_slots",
        "harness.engine.faults.padded_requests:reset_full_layers_only",
    ),
    FaultSpec(
        "pad.state-guard-below-zero",
        "vllm-project/vllm#39064",
        "a guard for block -1 takes padded requests with block 0 for live ones",
        "harness.engine.linear_attention:owns_state",
        "harness.engine.faults.padded_requests:from_block_zero_on",
    ),
    FaultSpec(
        "pad.length-one-reads-null-block",
        "vllm-project/vllm#38436",
        "padded requests have one key, which is read from a null block that need not be finite",
        "harness.engine.batch:pad_requests",
        "harness.engine.faults.padded_requests:one_key_each",
    ),
    FaultSpec(
        "pad.shared-trash-slot",
        "huggingface/transformers#46765",
        "padded tokens are stored in the block that block tables are padded with",
        "harness.engine.runner:trash_block",
        "harness.engine.faults.padded_requests:null_block_as_trash",
    ),
    FaultSpec(
        "pad.private-slot-copy",
        "vllm-project/vllm-ascend#15417",
        "a backend copies the slots before a dummy step clears them",
        "harness.engine.batch:fill_dummy",
        "harness.engine.faults.dummy_batches:build_then_clear",
    ),
    FaultSpec(
        "null.warmup-writes-slot-zero",
        "vllm-project/vllm#38719",
        "warm-ups and dummy batches store their tokens in slot 0",
        "harness.engine.batch:dummy_slots",
        "harness.engine.faults.dummy_batches:zeroed_slots",
    ),
    FaultSpec(
        "graph.workspace-grows",
        "vllm-project/vllm#45487",
        "a workspace grows after a capture, and the graph keeps the memory that was freed",
        "harness.engine.workspace:Workspace.counters",
        "harness.engine.faults.graph_memory:counters_that_grow",
    ),
    FaultSpec(
        "graph.workspace-in-pool",
        "ROCm/aiter#5393",
        "a workspace is first made inside a capture, in memory that the pool uses again",
        "harness.engine.workspace:Workspace.counters",
        "harness.engine.faults.graph_memory:counters_made_in_a_capture",
    ),
    FaultSpec(
        "graph.buffers-by-request-limit",
        "vllm-project/vllm#41016",
        "a buffer has room for the requests at once, and graphs are larger",
        "harness.engine.workspace:num_counters",
        "harness.engine.faults.graph_memory:request_limit",
    ),
    FaultSpec(
        "graph.rebuilt-metadata",
        "sgl-project/sglang#26019",
        "the block table of a replay is a new tensor, and the captured one stays zero",
        "harness.engine.batch:put_table",
        "harness.engine.faults.graph_memory:replace_table",
    ),
    FaultSpec(
        "plan.surplus-blocks",
        "flashinfer-ai/flashinfer#4002",
        "a plan fills in the items that have work, and the whole grid reads it",
        "harness.kernels.torch.plan:write_items",
        "harness.engine.faults.decode_plans:write_items_in_use",
    ),
    FaultSpec(
        "plan.split-count-of-capture",
        "vllm-project/vllm#20301",
        "scratch has room for as many pieces as the captured plan had",
        "harness.kernels.torch.plan:scratch_room",
        "harness.engine.faults.decode_plans:room_for_this_plan",
    ),
    FaultSpec(
        "plan.wrong-element-size",
        "vllm-project/vllm#38719",
        "pieces of work are cut for a bfloat16 cache, whatever its type",
        "harness.engine.kernels:planned_itemsize",
        "harness.engine.faults.decode_plans:itemsize_of_bfloat16",
    ),
    FaultSpec(
        "workspace.dirty-counters",
        "vllm-project/vllm#25520",
        "counters that have to be zero lie in scratch that others leave dirty",
        "harness.engine.workspace:Workspace.counters",
        "harness.engine.faults.decode_plans:counters_in_scratch",
    ),
)
