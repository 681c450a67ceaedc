"""Faults of the engine: each shows where it should, only on its own memory, and is gone afterwards."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from harness.catalog import FAULTS, ORACLES
from harness.errors import IllegalAddress
from harness.poison.patterns import Poison
from harness.records import Case, Finding
from harness.targets.base import Evidence
from harness.targets.engine import EngineTarget

PADDED = {"graph": "full", "capture_sizes": (4,), "requests": ((9, 6), (70, 5), (20, 4))}
EXPERTS = PADDED | {"num_experts": 4, "quantize": "fp8_per_tensor"}
HYBRID = {"layers": ("kda", "mla"), "decode_kernel": "tiled-multiply", "requests": ((9, 4), (70, 5))}
DUMMY = {"dummy_steps": True, "requests": ((9, 3), (20, 2))}


def findings(oracle: str, params: dict[str, Any], sites: set[str], pattern: str = "nan") -> list[Finding]:
    torch.set_num_threads(1)
    case = Case(id="case", scenario="s", system="engine", params=params, seed=7)
    run = EngineTarget(case).run(Poison(pattern, frozenset(sites)))
    return ORACLES.get(oracle).judge(Evidence(case, [run])).findings


# fault, oracle, params, sites that are poisoned, site that a finding names
CAUGHT = [
    ("graph.fresh-plan-each-step", "address", PADDED | {"kv": "fp8_e4m3"}, set(), "sched_meta"),
    ("graph.fresh-plan-each-step", "replay", PADDED | {"kv": "fp8_e4m3"}, {"sched_meta"}, "sched_meta"),
    ("graph.plan-in-warmup-only", "replay", PADDED | {"capture": "lazy"}, set(), "sched_meta"),
    ("kv.skip-zero-new-blocks", "finite", HYBRID, {"kv.new"}, None),
    ("graph.padded-rows-in-amax", "finite", EXPERTS, {"output"}, None),
    ("router.int64-ids", "finite", EXPERTS, {"router.ids"}, None),
    ("router.int64-ids", "finite", EXPERTS | {"zero_fill_output": True}, {"router.ids", "output"}, None),
    ("write_kv.slot-zero-for-padding", "sentinel", DUMMY, {"kv.null"}, "kv.null"),
    ("write_kv.slot-zero-for-padding", "sentinel", DUMMY, set(), "kv.null"),
    ("write_kv.slot-zero-for-padding", "sentinel", DUMMY | PADDED, {"kv.null"}, "kv.null"),
    ("graph.shared-pool-overwrite", "finite", PADDED | {"drafter": True}, {"graph.pool"}, None),
    ("graph.shared-pool-overwrite", "sentinel", PADDED | {"drafter": True}, {"graph.pool"}, "graph.pool"),
]


@pytest.mark.parametrize(("name", "oracle", "params", "sites", "site"), CAUGHT)
def test_a_fault_is_caught_while_it_is_applied_and_only_then(
    name: str, oracle: str, params: dict[str, Any], sites: set[str], site: str | None
) -> None:
    assert findings(oracle, params, sites) == []
    with FAULTS.get(name).applied():
        found = findings(oracle, params, sites)
    assert found and (site is None or site in {finding.site for finding in found})
    assert findings(oracle, params, sites) == []


# What cures a fault, or memory that it does not touch: the oracle stays silent although the fault is applied.
SILENT = [
    ("kv.skip-zero-new-blocks", "finite", HYBRID, {"kv.free", "kv.null"}),
    ("kv.skip-zero-new-blocks", "finite", HYBRID | {"decode_kernel": "tiled"}, {"kv.new"}),
    ("graph.padded-rows-in-amax", "finite", EXPERTS, {"router.ids", "kv.new", "workspace", "lse"}),
    ("graph.padded-rows-in-amax", "finite", EXPERTS | {"zero_fill_output": True}, {"output"}),
    ("graph.padded-rows-in-amax", "finite", EXPERTS | {"quantize": "fp8_per_token"}, {"output"}),
    ("graph.padded-rows-in-amax", "finite", EXPERTS | {"quantize_kernel": "torch-fmax"}, {"output"}),
    ("graph.padded-rows-in-amax", "finite", EXPERTS | {"capture_sizes": (1, 2, 3)}, {"output"}),
    ("router.int64-ids", "finite", EXPERTS, {"output", "kv.new", "workspace", "graph.pad_rows"}),
    ("router.int64-ids", "finite", EXPERTS | {"zero_fill_output": True}, set()),
    ("graph.shared-pool-overwrite", "finite", PADDED | {"drafter": True}, {"output", "sched_meta"}),
    ("graph.shared-pool-overwrite", "finite", PADDED, {"graph.pool"}),
    ("graph.plan-in-warmup-only", "replay", PADDED | {"capture": "persistent"}, set()),
    ("graph.fresh-plan-each-step", "address", PADDED | {"capture": "lazy"}, set()),
]


@pytest.mark.parametrize(("name", "oracle", "params", "sites"), SILENT)
def test_a_fault_stays_silent_where_it_cannot_show(
    name: str, oracle: str, params: dict[str, Any], sites: set[str]
) -> None:
    with FAULTS.get(name).applied():
        assert findings(oracle, params, sites) == []


@pytest.mark.parametrize("sites", [set(), {"block_table.pad"}], ids=["friendly", "poisoned"])
def test_a_padded_row_that_names_block_minus_one_is_an_illegal_address(sites: set[str]) -> None:
    assert findings("finite", PADDED, sites) == []
    with (
        FAULTS.get("plan.padded-row-block-minus-one").applied(),
        pytest.raises(IllegalAddress, match="block_table: index -1"),
    ):
        findings("finite", PADDED, sites)
    assert findings("finite", PADDED, sites) == []


def test_wrong_experts_are_wrong_answers_even_where_memory_is_friendly() -> None:
    with FAULTS.get("router.int64-ids").applied():
        assert findings("reference", EXPERTS, set())


def test_an_id_from_memory_that_nobody_wrote_is_out_of_bounds_in_strict_mode() -> None:
    case = Case(id="case", scenario="s", system="engine", params=EXPERTS, seed=7)
    with FAULTS.get("router.int64-ids").applied(), pytest.raises(IllegalAddress, match="expert ids"):
        EngineTarget(case).run(Poison("nan", frozenset({"router.ids"}), strict=True))


def test_a_stale_plan_leaves_out_later_pages_and_moves_the_logits() -> None:
    with FAULTS.get("graph.plan-in-warmup-only").applied():
        assert findings("reference", PADDED | {"capture": "lazy"}, set())
