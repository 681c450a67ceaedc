"""Coverage of a run: by op and by kernel, from cases that passed."""

from __future__ import annotations

from typing import Any

import pytest

from harness.core.cases import Case, Job
from harness.core.catalog import KERNELS
from harness.core.conditions.table import SPACES, key_of, space_for
from harness.core.records import CaseResult, Verdict
from harness.ops.mla_decode.params import MlaDecodeParams
from harness.store.coverage import Coverage, coverages
from tests.transcripts import Approved

SPACE = SPACES["mla_decode"]


def found(*cases: tuple[str, str, Verdict], key: str = key_of(SPACE)) -> list[Coverage]:
    """The coverage of cases: a kernel, the class of `tokens` in its only point, and a verdict."""
    results, jobs = [], {}
    for number, (kernel, tokens, verdict) in enumerate(cases):
        case = Case(
            id=f"c{number}",
            scenario="s",
            system="kernel",
            op="mla_decode",
            params=MlaDecodeParams(kernel=kernel),
        )
        jobs[case.id] = job = Job(key=case.id, case=case)
        point: dict[str, Any] = {"tokens": tokens, "heads": "16", "window": "one"}
        results.append(CaseResult.of(job, verdict, shown={key: (SPACE.coded(point),)}))
    return list(coverages(results, jobs))


def test_kernels_are_counted_together_and_alone(approved: Approved) -> None:
    every, tiled, multiply = found(
        ("tiled", "1", Verdict.PASS), ("tiled-multiply", "2", Verdict.PASS)
    )
    assert [one.kernel for one in (every, tiled, multiply)] == [
        "all",
        "mla_decode/tiled",
        "mla_decode/tiled-multiply",
    ]
    assert [one.shown.counts(2)[0] for one in (every, tiled, multiply)] == [5, 3, 3]
    approved(every.statement)


@pytest.mark.parametrize("verdict", [Verdict.FAIL, Verdict.SKIP])
def test_a_case_that_did_not_pass_shows_nothing(verdict: Verdict) -> None:
    assert found(("tiled", "1", verdict)) == []


def test_points_of_other_classes_are_left_out() -> None:
    assert found(("tiled", "1", Verdict.PASS), key="mla_decode:00000000") == []


def test_what_a_kernel_refuses_does_not_count_for_it_and_its_reason_is_there() -> None:
    every, _, triton = found(("tiled", "1", Verdict.PASS), ("triton", "1", Verdict.PASS))
    assert triton.shown.counts(2)[1] < every.shown.counts(2)[1]
    reasons = {why: labels for why, labels in triton.refusals().items() if "window" in why}
    assert list(reasons.values()) == [["window one", "window inside", "window past"]]
    assert not any("no argument" in why for why in every.refusals())


def test_pairs_of_a_kernel_are_not_met_for_a_reason() -> None:
    _, tiled = found(
        ("tiled", "1", Verdict.PASS), ("tiled", "2", Verdict.SKIP), ("tiled", "1", Verdict.FAIL)
    )
    unmet = tiled.unmet_pairs()
    assert {why: len(pairs) for why, pairs in unmet.items() if why != "no call shows it"} == {
        "skip, such as c1: ": 2
    }
    assert sum(map(len, unmet.values())) == sum(1 for _ in tiled.shown.unmet(2))


def test_a_plan_is_refused_by_kernels_without_a_planner_and_a_number_is_declared(
    approved: Approved,
) -> None:
    fa3, persistent = (
        space_for(KERNELS.get(name))
        for name in ("mla_decode/vllm-fa3", "select_topk/vllm-persistent")
    )
    approved(fa3.refused["plan", "given"])
    assert [label for name, label in persistent.refused if name == "topk"] == ["1", "2-15", "16-64"]
    assert {name for name, _ in persistent.refused} == {"topk"}
    live = space_for(KERNELS.get("route_experts/torch-live")).refused
    approved(live["live", "not given"])
