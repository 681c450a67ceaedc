"""Engines that move their cache: silent in every clean schedule, and each bug shows with its
site.
"""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError
from torch_poison.patterns import Poison

from harness.core.cases import Case
from harness.core.catalog import FAULTS, ORACLES
from harness.core.move_params import MoveParams
from harness.core.seams import inject
from harness.evidence.records import Evidence
from harness.judge.targets.moves import MoveTarget, scheduled

HOST: dict[str, Any] = {"move": "host", "num_blocks": 7, "schedules": 2}
HANDOFF: dict[str, Any] = {"move": "handoff", "num_blocks": 14, "schedules": 2}
HYBRID = {"groups": ("latent", "window", "state"), "tensor_parallel": 2, "num_blocks": 24}
WIDE = {
    "block_size": 768,
    "kernel_block": 64,
    "chunk": 512,
    "requests": ((760, 3), (700, 4), (900, 3)),
}
INDEX = {"groups": ("latent", "index")}
BROKEN = {"failing": (0, 2), "aborted": (1,)}
HEADS = {
    "groups": ("heads",),
    "unit": "token",
    "requests": ((20, 20), (9, 30), (30, 12)),
    "num_blocks": 6,
}

CAUGHT = [
    ("move.store-before-write", HOST, "move.unsent"),
    ("move.load-over-readers", HOST, "move.late"),
    ("move.page-length-per-kernel-block", HANDOFF | WIDE, "move.unsent"),
    ("move.length-of-shared-base", HANDOFF | HYBRID, "move.unsent"),
    ("move.shards-of-rank-zero", HANDOFF | HYBRID, "move.foreign"),
    ("move.failed-as-finished", HANDOFF | INDEX | BROKEN, "move.unsent"),
    ("move.late-writer", HANDOFF | INDEX | BROKEN, "move.late"),
    ("move.host-rows-for-index", HOST | INDEX, "move.foreign"),
    ("move.index-before-arrival", HOST | INDEX, "move.unsent"),
    ("move.index-left-behind", HOST | INDEX, "move.unsent"),
    ("move.rows-for-blocks", HOST, "move.unsent"),
    ("move.fused-read-as-planes", HOST | HEADS, "move.unsent"),
]
UNORDERED = (
    "move.store-before-write",
    "move.load-over-readers",
    "move.late-writer",
    "move.index-before-arrival",
)


def findings(params: dict[str, Any], seed: int = 5) -> dict[str, set[str | None]]:
    """Oracle -> the sites that its findings name."""
    case = Case(id="case", scenario="s", system="moves", params=params, seed=seed)
    evidence = Evidence(case, [MoveTarget(case).run(Poison("nan", frozenset()))])
    judged = {name: ORACLES.get(name).judge(evidence) for name in ("landed", "ordered")}
    assert all(judgement.looked_at for judgement in judged.values())
    return {
        name: {finding.site for finding in judgement.findings} for name, judgement in judged.items()
    }


@pytest.mark.first(5)
@pytest.mark.parametrize(("fault", "params", "site"), CAUGHT, ids=[fault for fault, _, _ in CAUGHT])
def test_each_bug_shows_with_its_site_and_the_engine_without_it_is_silent(fault, params, site):
    assert findings(params) == {"landed": set(), "ordered": set()}
    with inject(FAULTS.get(fault)) as injection:
        found = findings(params)
    assert injection.was_reached
    assert site in found["landed"] | found["ordered"]
    if fault in UNORDERED:
        assert found["ordered"]


def test_the_search_finds_the_order_that_corrupts_where_a_run_was_lucky():
    params, lucky = MoveParams(**(HANDOFF | INDEX | BROKEN)), 0
    with inject(FAULTS.get("move.late-writer")):
        for seed in range(4):
            moved = scheduled(params, seed, None, "")
            lucky += not moved.misplaced and bool(moved.races)
        found = findings(HANDOFF | INDEX | BROKEN | {"schedules": 4}, seed=0)
    assert lucky, "every schedule was unlucky, so the search had nothing to do"
    assert "move.late" in found["landed"]


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("move", [HOST | {"unit": "token"}, HANDOFF | BROKEN | {"decode_ranks": 2}])
def test_clean_moves_of_heads_between_ranks_are_silent(move, ranks):
    for seed in range(3):
        moved = scheduled(
            MoveParams(**(move | {"groups": ("heads",), "tensor_parallel": ranks})), seed, None, ""
        )
        assert moved.misplaced == [] and moved.races == [] and moved.num_bytes


@pytest.mark.parametrize(
    ("params", "why"),
    [
        ({"kernel_block": 64}, "no multiple of kernel_block"),
        (
            {"groups": ("latent", "state"), "shared_prefix": 16},
            "shared_prefix with a window or a state",
        ),
        ({"failing": (0,)}, "use move: handoff"),
        ({"num_blocks": 4}, "leaves 2 blocks"),
        ({"shared_prefix": 20}, "as long as a prompt"),
    ],
)
def test_illegal_parameters_are_refused(params, why):
    with pytest.raises(ValidationError, match=why):
        MoveParams(**params)
