"""One row for each known bug: in which scene a script shows it, and the one line that puts it back.

A scene is a template under ``templates/scenes``; a hook is a place in a template where a bug's line may stand. A bug
that fits a scene needs one row here. A bug of a kernel that has none is exported from its own source (see
:mod:`harness.diagnose.script.sources`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.core.cases import Case
from harness.diagnose.script.scheduler_snapshots import (
    Numbers,
    decode_step,
    dummy_step,
    kernel_call,
    new_block_step,
    prefill_step,
    uneven_prefill_step,
)


@dataclass(frozen=True, slots=True)
class Scene:
    """A template, where its numbers come from, and the op of a serving run whose kernel's promises it keeps."""

    template: str
    numbers: Callable[[Case], Numbers] = kernel_call
    op: str = "mla_decode"


OP_SCENES: dict[str, Scene] = {
    "mla_decode": Scene("decode"),
    "context_attention": Scene("context"),
    "merge_attn_states": Scene("merge"),
    "write_kv": Scene("write"),
    "quantize_fp8": Scene("quantize"),
    "route_experts": Scene("route"),
}
"""The scene of a kernel case: one call of its op."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a script shows one fault: `line`, put at `hook`, is the bug. `engine` is the scene of a serving run."""

    hook: str
    line: str
    engine: Scene | None = None


RECIPES: dict[str, Recipe] = {
    "merge.ignore-context-count": Recipe(
        "merge.count", "num_tokens_with_context = None", Scene("prefill", prefill_step, "context_attention")
    ),
    "merge.empty-lse-finite": Recipe(
        "context.empty_lse", "lse[:, rows] = 0.0", Scene("prefill", uneven_prefill_step, "context_attention")
    ),
    "merge.assume-minus-inf": Recipe(
        "merge.empty", "lses = torch.stack((prefix_lse[:, merged], suffix_lse[:, merged]))"
    ),
    "merge.zero-weight-times-stale": Recipe(
        "merge.weights", "outs = torch.stack((prefix_out[merged], suffix_out[merged])).float()"
    ),
    "context.stale-lse-of-empty-rows": Recipe(
        "context.empty_lse",
        "lse[:, rows] = torch.empty(len(lse), rows.stop - rows.start)",
        Scene("prefill", uneven_prefill_step, "context_attention"),
    ),
    "merge.lse-base-2": Recipe(
        "context.units", "lse = lse * 1.4427  # of base 2", Scene("prefill", prefill_step, "context_attention")
    ),
    "kv.tail-masked-by-multiply": Recipe(
        "decode.used", "used = position < PAGE * num_pages[:, None]", Scene("decode", decode_step)
    ),
    "decode.zero-length-row-nan": Recipe("decode.divisor", "divisor = total", Scene("decode", decode_step)),
    "graph.fresh-plan-each-step": Recipe(
        "replay.plan", "plan = torch.empty_like(plan)", Scene("replay_persistent", decode_step)
    ),
    "graph.plan-in-warmup-only": Recipe("replay.metadata", "captured = warmed_up", Scene("replay_lazy", decode_step)),
    "graph.padded-rows-in-amax": Recipe("quantize.num_live", "num_live = None", Scene("padded_amax", decode_step)),
    "graph.shared-pool-overwrite": Recipe("pool.take", "taken = logits[:NUM_LIVE]", Scene("shared_pool", decode_step)),
    "kv.skip-zero-new-blocks": Recipe("decode.zeroed", "to_zero = []", Scene("decode", new_block_step)),
    "kv.runner-ignores-zero-list": Recipe("decode.zeroed", "to_zero = []", Scene("decode", new_block_step)),
    "kv.zero-gate-by-exact-type": Recipe("decode.zeroed", "to_zero = []", Scene("decode", new_block_step)),
    "kv.states-zeroed-only": Recipe("decode.zeroed", "to_zero = []", Scene("decode", new_block_step)),
    "router.int64-ids": Recipe(
        "route.ids",
        "ids = torch.empty(len(logits), K, dtype=torch.int64)",
        Scene("experts", decode_step, "route_experts"),
    ),
    "index.slot-minus-one-wraps": Recipe(
        "write.slots", "slot_mapping %= len(kv_cache) * PAGE", Scene("write", dummy_step, "write_kv")
    ),
    "write_kv.slot-zero-for-padding": Recipe(
        "write.slots", "slot_mapping[NUM_LIVE:] = 0", Scene("write", dummy_step, "write_kv")
    ),
    "null.warmup-writes-slot-zero": Recipe(
        "write.slots", "slot_mapping[NUM_LIVE:] = 0", Scene("write", dummy_step, "write_kv")
    ),
    "pad.shared-trash-slot": Recipe(
        "write.slots", "slot_mapping[NUM_LIVE:] = 0", Scene("write", dummy_step, "write_kv")
    ),
    "graph.rebuilt-metadata": Recipe(
        "replay.table", "static_table = block_table.clone()", Scene("replay_persistent", decode_step)
    ),
    "plan.padded-row-block-minus-one": Recipe(
        "decode.padding", "block_table[NUM_LIVE:], seq_lens[NUM_LIVE:] = -1, 1", Scene("decode", decode_step)
    ),
}
"""Fault -> recipe."""
