"""State changes of a running engine: each happens, is judged beside a cold engine, and its faults
are seen.
"""

from __future__ import annotations

import functools
from collections import Counter
from itertools import pairwise, product

import pytest

from harness.core.cases import Job
from harness.core.conditions.changes import CHANGES, SPACE
from harness.core.conditions.table import key_of
from harness.core.engine_params import EngineParams
from harness.core.records import CaseResult, Verdict
from harness.core.sites import SITES
from harness.judge.run_case import run_case
from harness.scenario.draws import draw_sequence
from harness.scenario.expand import expand
from harness.scenario.load import load_scenarios, shipped_directory
from harness.scenario.variant import changed
from tests.judge.applied_faults import check_caught, check_silent, findings

SCENARIOS = [
    scenario for scenario in load_scenarios(shipped_directory()) if "state" in scenario.tags
]
CASES = {case.id: case for scenario in SCENARIOS for case in expand(scenario)}
NIGHTLY = {s.name for s in SCENARIOS if "nightly" in s.tags}
EVERY = {site.name for site in SITES}
SMALL = {"layers": ["mla"], "graph": "full", "capture_sizes": [2], "epochs": 2}
PREFIX = {"prefix_caching": True, "shared_prefix": 64, "requests": [[66, 3], [65, 3]]}
RELOAD = SMALL | PREFIX | {"changes": [["reload", 0]]}
SLEEP = SMALL | PREFIX | {"changes": [["sleep", 0]]}
ADAPTED = PREFIX | {"layers": ["mla"], "adapters": [1, 2]}
SWITCHED_ASLEEP = [["switch_adapter", 0], ["sleep", 0]]
EXPERTS = {"requests": [[9, 4], [30, 4]], "num_experts": 4, "expert_ranks": 2}


@functools.cache
def result_of(name: str) -> CaseResult:
    """The result of a case under one pattern."""
    return run_case(Job(key="job", case=changed(CASES[name], "patterns=[nan]")))


def pairs_shown_by(names: list[str]) -> set[tuple[str, str]]:
    points = [word for name in names for word in result_of(name).shown[key_of(SPACE)]]
    return {(point["first"], point["then"]) for point in map(SPACE.decoded, points)}


@pytest.mark.first(10)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.nightly if case.scenario in NIGHTLY else ())
        for name, case in CASES.items()
    ],
)
def test_each_case_passes_and_its_change_happened(name):
    result = result_of(name)
    assert result.verdict is Verdict.PASS
    params = CASES[name].params_as(EngineParams)
    for event, count in Counter(change for change, _ in params.changes).items():
        assert f"{event} {count}" in result.reason


def test_every_change_is_in_a_scenario():
    kinds = {
        change for case in CASES.values() for change, _ in case.params_as(EngineParams).changes
    }
    assert kinds == {"reload", "reload_new", "sleep", "move_experts", "switch_adapter"}


def test_every_change_comes_right_behind_every_other():
    found = pairs_shown_by([name for name in CASES if name.startswith("state-pairs[")])
    assert found >= {
        pair
        for pair in product(CHANGES, repeat=2)
        if set(pair) != {"move_experts", "switch_adapter"}
    }


@pytest.mark.nightly
def test_the_planned_cases_show_every_ordered_pair():
    changing = [name for name, case in CASES.items() if case.params.changes]
    found = pairs_shown_by(changing)
    firsts, thens = (SPACE[name].classes for name in ("first", "then"))
    wanted = {
        (first, then)
        for first, then in product(firsts, thens)
        if not SPACE.why_not([("first", first), ("then", then)])
    }
    assert found == wanted


def test_a_case_without_its_change_is_skipped_and_no_pass():
    case = changed(
        CASES["state-experts[graph=none,expert_ranks=2,change=running]"],
        "changes=[[move_experts,90]]",
    )
    result = run_case(Job(key="job", case=case))
    assert (result.verdict, result.reason) == (Verdict.SKIP, "never happened: move_experts")


@pytest.mark.first(6)
@pytest.mark.parametrize(
    ("fault", "oracle", "params"),
    [
        ("reload.absorbed-rebound", "address", RELOAD),
        ("reload.experts-reallocated", "address", SMALL | EXPERTS | {"changes": [["reload", 0]]}),
        ("reload.graphs-kept", "address", RELOAD | {"changes": [["reload_new", 0]]}),
        ("reload.prefixes-kept", "cold_warm", RELOAD),
        ("reload.scale-of-old-weights", "cold_warm", RELOAD),
        ("sleep.prefixes-kept", "cold_warm", SLEEP),
        ("sleep.scales-zeroed", "cold_warm", SLEEP | {"kv": "fp8_e4m3"}),
        ("sleep.constants-in-kv-pool", "replay", SLEEP | {"decode_kernel": "tiled-counted"}),
        (
            "experts.graph-without-places",
            "replay",
            SMALL | EXPERTS | {"changes": [["move_experts", 2]]},
        ),
        ("experts.places-rebound", "address", SMALL | EXPERTS | {"changes": [["move_experts", 2]]}),
        (
            "experts.reload-by-number",
            "reference",
            EXPERTS | {"changes": [["move_experts", 0], ["reload", 0]]},
        ),
        ("adapter.of-start-after-wake", "reference", ADAPTED | {"changes": SWITCHED_ASLEEP}),
        (
            "reload.tensors-of-start",
            "reference",
            PREFIX | {"changes": [["reload", 0], ["reload_new", 0], ["reload", 0]]},
        ),
    ],
)
def test_an_oracle_sees_the_fault(fault, oracle, params):
    check_caught(fault, oracle, params, EVERY, None)


@pytest.mark.parametrize(
    ("fault", "oracle", "params"),
    [
        ("experts.reload-by-number", "reference", EXPERTS | {"changes": [["reload", 0]]}),
        ("adapter.of-start-after-wake", "reference", ADAPTED | {"changes": [["sleep", 0]]}),
        ("reload.tensors-of-start", "reference", PREFIX | {"changes": [["reload", 0]] * 2}),
    ],
)
def test_a_fault_that_needs_two_changes_is_not_seen_behind_one(fault, oracle, params):
    check_silent(fault, oracle, params, EVERY)


@pytest.mark.parametrize("more", [{}, {"num_experts": 4}, {"layers": ["sparse"], "index_topk": 4}])
def test_a_request_that_runs_through_a_reload_has_tokens_of_both_models(more):
    params = SMALL | {"requests": [[9, 6], [9, 2]], "arrivals": [0, 4], "changes": [["reload", 3]]}
    for oracle in ("reference", "tokens", "cold_warm"):
        assert findings(oracle, params | more, set()) == []


def test_a_request_that_is_aborted_before_its_first_token_has_no_cold_answer():
    params = SMALL | {"requests": [[9, 6], [9, 2], [9, 2]], "aborts": [[1, 0]]}
    assert findings("cold_warm", params | {"changes": [["reload", 0]]}, set()) == []


def test_a_change_that_cannot_be_is_refused(approved):
    for wrong in [
        {"changes": [["move_experts", 0]]},
        {"changes": [["switch_adapter", 0]]},
        {"changes": [["sleep", 0]], "flush": True},
        {"adapters": [1], "layers": ["kda"]},
        {"adapters": [1] * 9},
    ]:
        with approved.raises(ValueError, str(wrong)):
            EngineParams(**wrong)


def test_fuzz_draws_every_change_right_behind_every_other():
    drawn = [draw_sequence(f"3:{number}").params for number in range(1500)]
    pairs = {(a, b) for params in drawn for (a, _), (b, _) in pairwise(params.changes)}
    assert pairs == {
        pair
        for pair in product(CHANGES, repeat=2)
        if set(pair) != {"move_experts", "switch_adapter"}
    }
    assert any(params.aborts and len(params.changes) > 1 for params in drawn)
