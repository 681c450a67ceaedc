"""The cases of `engine-conditions`: few of them show much, and what draws them knows the schedule
of the engine.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from harness.core.cases import Case, Job
from harness.core.conditions.engine import SPACE
from harness.core.conditions.model import Shown
from harness.core.conditions.table import key_of
from harness.core.records import Verdict
from harness.judge.run_case import run_case
from harness.scenario.expand import expand
from harness.scenario.load import load_scenarios, shipped_directory

BY_OPTION = {"quantize_fp8"}
"""Ops that an option of the engine gives a kernel of its own, which no parameter names."""
TINY = {
    "requests": ((5, 3), (4, 2)),
    "hidden_size": 32,
    "v_head_dim": 32,
    "num_heads": 1,
    "num_blocks": 12,
}


@pytest.mark.parametrize(
    "params",
    [
        {"layers": ("mla",)},
        {"layers": ("mla",), "requests": ((5, 1), (4, 1))},
        {"layers": ("mla",), "requests": ((5, 1), (100, 1))},
        {"layers": ("mla",), "requests": ((5, 1),), "graph": "full"},
        {"layers": ("window",), "quantize": "mxfp8"},
        {"layers": ("sparse",)},
        {"layers": ("sparse",), "graph": "full"},
        {"layers": ("kda",), "quantize": "fp8_per_tensor"},
        {"layers": ("kda", "mla"), "num_experts": 2},
    ],
    ids=str,
)
def test_a_kernel_that_the_parameters_leave_idle_is_never_launched(params: dict[str, Any]) -> None:
    case = Case(
        id="case", scenario="s", system="engine", params={**TINY, **params}, oracles=("finite",)
    )
    result = run_case(Job(key="k", case=case))
    assert result.verdict is Verdict.PASS, result.reason
    launched = {name.partition("/")[0] for name in result.launched}
    fields = case.kind.kernels_of(None)
    idle = {fields[field] for field in case.params.idle_kernels()}
    assert not launched & idle
    # A plan is made for each graph, and a decode may have no request: only these may be neither.
    assert set(fields.values()) - launched - idle <= {"mla_decode_plan", "mla_decode"}


def test_a_schedule_without_a_model_shows_what_the_engine_shows() -> None:
    from trust.arrays.write_engine_conditions import engine_case, serve_really, show

    random, wanted = (
        Random(3),
        [{"drafts": "none"}, {"drafts": "none", "graph": "exact"}, {"layer": "state"}],
    )
    for first in wanted:
        case = engine_case(random, iter([first] + [{}] * 99))
        if not case["speculative_tokens"]:
            assert set(show(case)) == set(serve_really(case))


@pytest.mark.nightly
def test_the_cases_of_the_engine_show_nearly_all_pairs_and_nine_triples_of_ten() -> None:
    shown = Shown(SPACE)
    for scenario in load_scenarios(shipped_directory()):
        if "nightly" in scenario.tags and "conditions" not in scenario.tags:
            continue
        for case in (case for case in expand(scenario) if case.system == "engine"):
            result = run_case(Job(key=case.id, case=case))
            assert result.verdict.value in ("pass", "skip"), (case.id, result.reason)
            launched = {name.partition("/")[0] for name in result.launched}
            idle = {
                case.kind.kernels_of(None)[field] for field in case.params.idle_kernels()
            } - BY_OPTION
            assert not launched & idle, (case.id, launched & idle)
            if result.verdict.value == "pass":
                shown.add(result.shown[key_of(SPACE)])
    pairs, triples = shown.counts(2), shown.counts(3)
    assert pairs[0] >= 0.99 * pairs[1] and triples[0] >= 0.9 * triples[1], (
        pairs,
        triples,
        list(shown.unmet(2)),
    )
