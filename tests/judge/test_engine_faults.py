"""Faults of the engine: each shows where it should, only on its own memory, and is gone
afterwards.
"""

from __future__ import annotations

from typing import Any

import pytest
from torch_poison.patterns import Poison

from harness.core.catalog import FAULTS
from harness.core.errors import IllegalAddress
from harness.core.records import Case
from harness.core.seams import inject
from harness.judge.targets.engine import EngineTarget
from tests.transcripts import Approved

from .applied_faults import check_caught, check_silent, findings  # type: ignore[import-not-found]

PADDED = {"graph": "full", "capture_sizes": (4,), "requests": ((9, 6), (70, 5), (20, 4))}
EXPERTS = PADDED | {"num_experts": 4, "quantize": "fp8_per_tensor"}
HYBRID = {
    "layers": ("kda", "mla"),
    "decode_kernel": "tiled-multiply",
    "requests": ((9, 4), (70, 5)),
}
MIXED = {
    "layers": ("window", "mla"),
    "window": 20,
    "kv": "fp8_e4m3",
    "window_kv": "bf16",
    "decode_kernel": "tiled-multiply",
    "requests": ((130, 4), (5, 3)),
}
LEFT = {
    "prefix_caching": True,
    "shared_prefix": 64,
    "requests": ((70, 2), (69, 3)),
    "cancelled": (0,),
}
SPARSE = {"layers": ("sparse", "mla"), "requests": ((9, 4), (100, 3)), "max_batched_tokens": 30}
WARM = {"layers": ("mla",), "prefix_caching": True, "epochs": 2, "requests": ((70, 2), (90, 2))}
CHUNKED = {
    "layers": ("mla",),
    "context_chunk": 24,
    "max_batched_tokens": 40,
    "requests": ((5, 4), (73, 2), (17, 3)),
}
FRESH_SHORTER = {"layers": ("mla",), "max_batched_tokens": 48, "requests": ((70, 2), (17, 3))}
FRESH_LONGER = FRESH_SHORTER | {"requests": ((53, 2), (60, 3))}
PADDED_RANK = {"quantize": "fp8_per_tensor", "dp_rank_tokens": 40, "requests": ((9, 2),)}
PARTS = PADDED | {"graph": "breakable", "capture_sizes": (2, 4), "capture_order": "rising"}
DUMMY = {"dummy_steps": True, "requests": ((9, 3), (20, 2))}


# fault, oracle, params, sites that are poisoned, site that a finding names
CAUGHT = [
    ("graph.fresh-plan-each-step", "address", PADDED | {"kv": "fp8_e4m3"}, set(), "sched_meta"),
    (
        "graph.fresh-plan-each-step",
        "replay",
        PADDED | {"kv": "fp8_e4m3"},
        {"sched_meta"},
        "sched_meta",
    ),
    ("graph.plan-in-warmup-only", "replay", PADDED | {"capture": "lazy"}, set(), "sched_meta"),
    ("kv.skip-zero-new-blocks", "finite", HYBRID, {"kv.new"}, None),
    ("graph.padded-rows-in-amax", "finite", EXPERTS, {"output"}, None),
    ("router.int64-ids", "finite", EXPERTS, {"router.ids"}, None),
    (
        "router.int64-ids",
        "finite",
        EXPERTS | {"zero_fill_output": True},
        {"router.ids", "output"},
        None,
    ),
    ("write_kv.slot-zero-for-padding", "sentinel", DUMMY, {"kv.null"}, "kv.null"),
    ("write_kv.slot-zero-for-padding", "sentinel", DUMMY, set(), "kv.null"),
    ("write_kv.slot-zero-for-padding", "sentinel", DUMMY | PADDED, {"kv.null"}, "kv.null"),
    ("graph.shared-pool-overwrite", "finite", PADDED | {"drafter": True}, {"graph.pool"}, None),
    ("merge.lse-base-2", "cold_warm", WARM | {"context_kernel": "torch-ragged"}, set(), None),
    ("context.rank-without-kv-lse-zero", "reference", CHUNKED | {"context_ranks": 2}, set(), None),
    ("batch.decode-prefill-border", "reference", CHUNKED, set(), None),
    ("rope.heads-taken-for-tokens", "reference", CHUNKED, set(), None),
    ("batch.prefills-by-tokens", "reference", FRESH_SHORTER, set(), None),
    ("batch.prefills-by-tokens", "reference", FRESH_SHORTER | {"context_chunk": 24}, set(), None),
    ("router.minus-one-from-the-end", "reference", EXPERTS | {"expert_ranks": 2}, set(), None),
    (
        "scale.unwritten-fp4-padding",
        "finite",
        {"quantize": "mxfp8", "requests": ((9, 2),)},
        {"scale.blocks"},
        None,
    ),
    ("scale.dp-padding-in-amax", "finite", PADDED_RANK, {"dp.pad_rows"}, None),
    (
        "scale.sentinel-never-replaced",
        "reference",
        {"kv": "fp8_e4m3", "requests": ((9, 3),)},
        set(),
        None,
    ),
    (
        "graph.shared-pool-overwrite",
        "sentinel",
        PADDED | {"drafter": True},
        {"graph.pool"},
        "graph.pool",
    ),
    ("graph.weak-eager-results", "replay", PARTS, {"graph.pool"}, "graph.pool"),
    ("graph.bridge-outgrown", "replay", PARTS, {"graph.pool"}, "graph.pool"),
    ("graph.weak-segment-output", "replay", PARTS, {"graph.pool"}, "graph.pool"),
    ("kv.runner-ignores-zero-list", "zeroed", MIXED, {"kv.new"}, "kv.new"),
    ("kv.zero-gate-by-exact-type", "finite", MIXED, {"kv.new"}, None),
    ("kv.states-zeroed-only", "finite", HYBRID, {"kv.new"}, None),
    ("prefix.hit-before-written", "finite", LEFT, {"kv.new"}, None),
    ("window.evicted-blocks-in-table", "finite", MIXED | {"window_kv": "bf16"}, {"kv.free"}, None),
    ("sparse.padding-overwrites-prefill", "reference", SPARSE, set(), None),
    ("sparse.topk-from-unwritten", "finite", SPARSE, {"sparse.topk", "kv.null"}, None),
    ("index.block-ids-clipped", "reference", HYBRID | {"num_blocks": 7}, set(), None),
    (
        "kv.null-block-unchecked",
        "sentinel",
        HYBRID | {"num_blocks": 5, "free_list": "lifo"},
        set(),
        "kv.null",
    ),
]


@pytest.mark.first(12)
@pytest.mark.parametrize(("name", "oracle", "params", "sites", "site"), CAUGHT)
def test_a_fault_is_caught_while_it_is_applied_and_only_then(
    name: str, oracle: str, params: dict[str, Any], sites: set[str], site: str | None
) -> None:
    check_caught(name, oracle, params, sites, site)


# What cures a fault, or memory that it does not touch: the oracle stays silent although the fault
# is applied.
SILENT = [
    ("merge.lse-base-2", "cold_warm", WARM, set()),
    ("context.rank-without-kv-lse-zero", "reference", CHUNKED, set()),
    ("batch.decode-prefill-border", "reference", CHUNKED | {"max_num_seqs": 1}, set()),
    ("batch.prefills-by-tokens", "reference", FRESH_LONGER, set()),
    ("batch.prefills-by-tokens", "reference", FRESH_SHORTER | {"max_num_seqs": 1}, set()),
    # Wrong numbers, but numbers: nothing that nobody wrote is read.
    ("batch.prefills-by-tokens", "finite", FRESH_SHORTER, {"context.output", "context.lse"}),
    ("router.minus-one-from-the-end", "reference", EXPERTS, set()),
    (
        "router.unmasked-padding-ids",
        "reference",
        EXPERTS | {"route_kernel": "torch"},
        {"router.ids"},
    ),
    ("scale.dp-padding-in-amax", "finite", PADDED_RANK | {"dp_rank_tokens": 0}, {"dp.pad_rows"}),
    ("scale.dp-padding-in-amax", "finite", PADDED_RANK, {"graph.pad_rows", "output"}),
    ("scale.sentinel-never-replaced", "reference", {"requests": ((9, 3),)}, set()),
    ("kv.skip-zero-new-blocks", "finite", HYBRID, {"kv.free", "kv.null"}),
    ("kv.skip-zero-new-blocks", "finite", HYBRID | {"decode_kernel": "tiled"}, {"kv.new"}),
    ("graph.padded-rows-in-amax", "finite", EXPERTS, {"router.ids", "kv.new", "workspace", "lse"}),
    ("graph.padded-rows-in-amax", "finite", EXPERTS | {"zero_fill_output": True}, {"output"}),
    ("graph.padded-rows-in-amax", "finite", EXPERTS | {"quantize": "fp8_per_token"}, {"output"}),
    (
        "graph.padded-rows-in-amax",
        "finite",
        EXPERTS | {"quantize_kernel": "torch-fmax"},
        {"output"},
    ),
    ("graph.padded-rows-in-amax", "finite", EXPERTS | {"capture_sizes": (1, 2, 3)}, {"output"}),
    ("router.int64-ids", "finite", EXPERTS, {"output", "kv.new", "workspace", "graph.pad_rows"}),
    ("router.int64-ids", "finite", EXPERTS | {"zero_fill_output": True}, set()),
    ("graph.shared-pool-overwrite", "finite", PADDED | {"drafter": True}, {"output", "sched_meta"}),
    ("graph.shared-pool-overwrite", "finite", PADDED, {"graph.pool"}),
    ("graph.bridge-outgrown", "replay", PARTS | {"capture_order": "falling"}, {"graph.pool"}),
    ("graph.weak-segment-output", "replay", PARTS | {"graph": "full"}, {"graph.pool"}),
    ("graph.plan-in-warmup-only", "replay", PADDED | {"capture": "persistent"}, set()),
    ("graph.fresh-plan-each-step", "address", PADDED | {"capture": "lazy"}, set()),
    ("kv.zero-gate-by-exact-type", "finite", HYBRID, {"kv.new"}),
    ("kv.zero-gate-by-exact-type", "finite", MIXED | {"decode_kernel": "tiled"}, {"kv.new"}),
    ("prefix.hit-before-written", "finite", LEFT | {"cancelled": ()}, {"kv.new"}),
    ("window.evicted-blocks-in-table", "finite", MIXED | {"decode_kernel": "tiled"}, {"kv.free"}),
    (
        "sparse.padding-overwrites-prefill",
        "reference",
        SPARSE | {"max_batched_tokens": 120},
        {"sparse.topk"},
    ),
    (
        "verify.nan-row-to-vocab-size",
        "finite",
        PADDED | {"drafter": True, "speculative_tokens": 1},
        {"kv.free"},
    ),
    ("kv.null-block-unchecked", "sentinel", HYBRID | {"num_blocks": 30}, set()),
]


@pytest.mark.first(12)
@pytest.mark.parametrize(("name", "oracle", "params", "sites"), SILENT)
def test_a_fault_stays_silent_where_it_cannot_show(
    name: str, oracle: str, params: dict[str, Any], sites: set[str]
) -> None:
    check_silent(name, oracle, params, sites)


@pytest.mark.parametrize("sites", [set(), {"block_table.pad"}], ids=["friendly", "poisoned"])
def test_a_padded_row_that_names_block_minus_one_is_an_illegal_address(sites: set[str]) -> None:
    assert findings("finite", PADDED, sites) == []
    with (
        inject(FAULTS.get("plan.padded-row-block-minus-one")),
        pytest.raises(IllegalAddress, match="block_table: index -1"),
    ):
        findings("finite", PADDED, sites)
    assert findings("finite", PADDED, sites) == []


def test_wrong_experts_are_wrong_answers_even_where_memory_is_friendly() -> None:
    with inject(FAULTS.get("router.int64-ids")):
        assert findings("reference", EXPERTS, set())


def test_an_id_from_memory_that_nobody_wrote_is_out_of_bounds_in_strict_mode() -> None:
    case = Case(id="case", scenario="s", system="engine", params=EXPERTS, seed=7)
    with inject(FAULTS.get("router.int64-ids")), pytest.raises(IllegalAddress, match="expert ids"):
        EngineTarget(case).run(Poison("nan", frozenset({"router.ids"}), strict=True))


def test_a_stale_plan_leaves_out_later_pages_and_moves_the_logits() -> None:
    with inject(FAULTS.get("graph.plan-in-warmup-only")):
        assert findings("reference", PADDED | {"capture": "lazy"}, set())


def test_a_token_past_the_vocabulary_is_an_illegal_address_of_the_drafter(
    approved: Approved,
) -> None:
    params = PADDED | {"drafter": True, "speculative_tokens": 1}
    with (
        inject(FAULTS.get("verify.nan-row-to-vocab-size")),
        approved.raises(IllegalAddress),
    ):
        findings("finite", params, {"output"})
    assert findings("finite", params, {"output"}) == []


def test_an_id_of_padding_that_nobody_masked_is_looked_up_all_the_same() -> None:
    params = PADDED | {"num_experts": 4, "route_kernel": "torch-live"}
    case = Case(id="case", scenario="s", system="engine", params=params, seed=7)
    strict = Poison("nan", frozenset({"router.ids"}), strict=True)
    EngineTarget(case).run(strict)
    with (
        inject(FAULTS.get("router.unmasked-padding-ids")),
        pytest.raises(IllegalAddress, match="expert ids"),
    ):
        EngineTarget(case).run(strict)
