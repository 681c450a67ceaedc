"""The cases of `engine-conditions`: few of them show much, and what draws them knows the schedule of the engine."""

from __future__ import annotations

from random import Random

import pytest

from harness.core.cases import Job
from harness.core.conditions.engine import SPACE
from harness.core.conditions.model import Shown
from harness.core.conditions.table import key_of
from harness.judge.run_case import run_case
from harness.scenario.expand import expand
from harness.scenario.load import load_scenarios, shipped_directory


def test_a_schedule_without_a_model_shows_what_the_engine_shows() -> None:
    from write_engine_conditions import engine_case, serve_really, show

    random, wanted = Random(3), [{"drafts": "none"}, {"drafts": "none", "graph": "exact"}, {"layer": "state"}]
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
            if result.verdict.value == "pass":
                shown.add(result.shown[key_of(SPACE)])
    pairs, triples = shown.counts(2), shown.counts(3)
    assert pairs[0] >= 0.99 * pairs[1] and triples[0] >= 0.9 * triples[1], (pairs, triples, list(shown.unmet(2)))
