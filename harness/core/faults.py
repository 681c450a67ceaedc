"""The table of faults: known bugs, and which function each replaces by which. No torch here."""

from __future__ import annotations

from harness.core.fault_spec import FaultSpec
from harness.core.graph_faults import GRAPH_FAULTS
from harness.core.pool_faults import POOL_FAULTS
from harness.core.row_faults import ROW_FAULTS

FAULTS: tuple[FaultSpec, ...] = (
    FaultSpec(
        "merge.ignore-context-count",
        "vllm-project/vllm#36540",
        "the merge reads prefix rows of tokens that have no context",
        "harness.kernels.torch.merge:merge_attn_states",
        "harness.engine.faults.context_merge:merge_all_tokens",
    ),
    FaultSpec(
        "merge.empty-lse-finite",
        "vllm-project/vllm#49294",
        "rows without keys in a context chunk get a finite lse, so their unwritten output is merged",
        "harness.kernels.torch.context:empty_row_lse",
        "harness.engine.faults.context_merge:finite_lse",
    ),
    FaultSpec(
        "kv.tail-masked-by-multiply",
        "flashinfer-ai/flashinfer#941",
        "unused KV slots are masked in the scores only: 0 times NaN reaches live rows",
        "harness.kernels.torch.decode:mask_unused_values",
        "harness.engine.faults.shared_pools:values_as_loaded",
    ),
    FaultSpec(
        "decode.zero-length-row-nan",
        "vllm-project/vllm#57017",
        "the combine step of decode divides 0 by 0 in rows of empty requests",
        "harness.kernels.torch.decode:divide_by_sum",
        "harness.engine.faults.padded_requests:divide_without_guard",
    ),
    FaultSpec(
        "graph.fresh-plan-each-step",
        "vllm-project/vllm#35175",
        "each step makes a new split-KV plan, and the captured graph keeps reading the first one",
        "harness.engine.capture:update_plan",
        "harness.engine.faults.decode_plans:rebind_plan",
    ),
    FaultSpec(
        "graph.plan-in-warmup-only",
        "vllm-project/vllm#42444",
        "warm-up and capture share their metadata, so the planning is not in the graph",
        "harness.engine.capture:metadata_for_capture",
        "harness.engine.faults.decode_plans:share_warmup_metadata",
    ),
    FaultSpec(
        "graph.padded-rows-in-amax",
        "vllm-project/vllm#37442",
        "the fp8 scale of activations covers rows of graph padding, which decode never writes",
        "harness.engine.quantize:live_rows",
        "harness.engine.faults.padded_requests:all_rows",
    ),
    FaultSpec(
        "graph.shared-pool-overwrite",
        "vllm-project/vllm#53488",
        "logits are read from graph memory after the drafter's graph ran in the same pool",
        "harness.engine.runner:take_logits",
        "harness.engine.faults.graph_memory:borrow_logits",
    ),
    FaultSpec(
        "kv.skip-zero-new-blocks",
        "vllm-project/vllm#43961",
        "blocks newly given to MLA layers of a hybrid model are not zeroed",
        "harness.engine.schedule.zeroing:groups_to_zero",
        "harness.engine.faults.shared_pools:skip_attention_blocks",
    ),
    FaultSpec(
        "router.int64-ids",
        "vllm-project/vllm#38359",
        "32-bit expert ids are written into a 64-bit buffer and read as 32-bit ones",
        "harness.engine.experts:hand_over_ids",
        "harness.engine.faults.expert_routing:ids_in_int64_buffer",
    ),
    FaultSpec(
        "write_kv.slot-zero-for-padding",
        "vllm-project/vllm#39444",
        "padded and dummy tokens are stored in slot 0, inside the null block",
        "harness.engine.batch:padding_slot",
        "harness.engine.faults.dummy_batches:slot_zero",
    ),
    FaultSpec(
        "plan.padded-row-block-minus-one",
        "vllm-project/vllm#35431",
        "block tables of padded requests hold -1, which a kernel uses as an offset",
        "harness.engine.batch:pad_requests",
        "harness.engine.faults.padded_requests:block_minus_one",
    ),
    *POOL_FAULTS,
    *ROW_FAULTS,
    *GRAPH_FAULTS,
)
