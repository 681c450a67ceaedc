"""One row for each known bug: the scene of its script, and the one line that injects it.

A scene is a template under ``templates/scenes``. A hook is the place in a template for the line of a bug. The script of
a kernel's bug without a row holds the kernel's own source (see :mod:`harness.diagnose.script.sources`).
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
    """A template, the source of its numbers, and for a serving run the op of the kernel that it shows."""

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
    """The script of one fault: `line` at `hook` is the bug. `engine` is the scene of a serving run."""

    hook: str
    line: str
    engine: Scene | None = None


_DECODE = Scene("decode", decode_step)
_PREFILL = Scene("prefill", prefill_step, "context_attention")
_UNEVEN_PREFILL = Scene("prefill", uneven_prefill_step, "context_attention")
_DUMMY_WRITE = Scene("write", dummy_step, "write_kv")
_NOT_ZEROED = Recipe("decode.zeroed", "to_zero = []", Scene("decode", new_block_step))
_SLOT_ZERO = Recipe("write.slots", "slot_mapping[NUM_LIVE:] = 0", _DUMMY_WRITE)

RECIPES: dict[str, Recipe] = {
    "merge.ignore-context-count": Recipe("merge.count", "num_tokens_with_context = None", _PREFILL),
    "merge.empty-lse-finite": Recipe("context.empty_lse", "lse[:, rows] = 0.0", _UNEVEN_PREFILL),
    "merge.assume-minus-inf": Recipe(
        "merge.empty", "lses = torch.stack((prefix_lse[:, merged], suffix_lse[:, merged]))"
    ),
    "merge.zero-weight-times-stale": Recipe(
        "merge.weights", "outs = torch.stack((prefix_out[merged], suffix_out[merged])).float()"
    ),
    "context.stale-lse-of-empty-rows": Recipe(
        "context.empty_lse", "lse[:, rows] = torch.empty(len(lse), rows.stop - rows.start)", _UNEVEN_PREFILL
    ),
    "merge.lse-base-2": Recipe("context.units", "lse = lse * 1.4427  # of base 2", _PREFILL),
    "kv.tail-masked-by-multiply": Recipe("decode.used", "used = position < PAGE * num_pages[:, None]", _DECODE),
    "decode.zero-length-row-nan": Recipe("decode.divisor", "divisor = total", _DECODE),
    "graph.fresh-plan-each-step": Recipe(
        "replay.plan", "plan = torch.empty_like(plan)", Scene("replay_persistent", decode_step)
    ),
    "graph.plan-in-warmup-only": Recipe("replay.metadata", "captured = warmed_up", Scene("replay_lazy", decode_step)),
    "graph.padded-rows-in-amax": Recipe("quantize.num_live", "num_live = None", Scene("padded_amax", decode_step)),
    "graph.shared-pool-overwrite": Recipe("pool.take", "taken = logits[:NUM_LIVE]", Scene("shared_pool", decode_step)),
    "kv.skip-zero-new-blocks": _NOT_ZEROED,
    "kv.runner-ignores-zero-list": _NOT_ZEROED,
    "kv.zero-gate-by-exact-type": _NOT_ZEROED,
    "kv.states-zeroed-only": _NOT_ZEROED,
    "router.int64-ids": Recipe(
        "route.ids",
        "ids = torch.empty(len(logits), K, dtype=torch.int64)",
        Scene("experts", decode_step, "route_experts"),
    ),
    "index.slot-minus-one-wraps": Recipe("write.slots", "slot_mapping %= len(kv_cache) * PAGE", _DUMMY_WRITE),
    "write_kv.slot-zero-for-padding": _SLOT_ZERO,
    "null.warmup-writes-slot-zero": _SLOT_ZERO,
    "pad.shared-trash-slot": _SLOT_ZERO,
    "graph.rebuilt-metadata": Recipe(
        "replay.table", "static_table = block_table.clone()", Scene("replay_persistent", decode_step)
    ),
    "plan.padded-row-block-minus-one": Recipe(
        "decode.padding", "block_table[NUM_LIVE:], seq_lens[NUM_LIVE:] = -1, 1", _DECODE
    ),
}
"""Fault -> recipe."""
