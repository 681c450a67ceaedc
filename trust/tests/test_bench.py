"""The measurements measure what they say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import harness_cost as bench
import pytest
from torch_poison.allocations import AllocationPoison

from harness.core.cases import Case
from harness.core.records import Verdict
from harness.scenario.load import load_scenarios
from harness.scenario.selection import select

Cli = Callable[..., tuple[int, str, str]]
SCENARIOS = Path(__file__).parents[2] / "scenarios"


def first_case(scenario: str) -> Case:
    return select(load_scenarios(SCENARIOS), [scenario])[0]


def test_an_unpoisoned_run_intercepts_no_allocation_and_still_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entered: list[object] = []
    enter = AllocationPoison.__enter__
    monkeypatch.setattr(
        AllocationPoison, "__enter__", lambda self: entered.append(self) or enter(self)
    )
    case = first_case("merge-kernel")
    assert bench.run_unpoisoned(case).verdict is Verdict.PASS and not entered
    assert bench.run_poisoned(case).verdict is Verdict.PASS and entered


def test_the_cost_of_a_replay_is_measured_on_graph_steps_only() -> None:
    ratio = bench.replay_ratio(first_case("mrv2-capture"))
    assert ratio is not None and 0.05 < ratio < 50
    assert bench.replay_ratio(first_case("merge-kernel")) is None


def test_a_case_that_does_not_pass_is_named_and_not_measured() -> None:
    broken = first_case("merge-kernel").model_copy(update={"oracles": ("replay",)})
    found = bench.measure([broken], repeats=1)
    assert found["num_cases"] == 0 and found["poison"]["median"] is None
    assert found["skipped"][0].startswith(f"{broken.id}: error: ")


def test_the_command_measures_in_a_process_of_its_own_and_prints_one_object(cli: Cli) -> None:
    subject = first_case("merge-kernel").id
    code, out, err = cli("bench", subject, "--scenarios", SCENARIOS, "--repeats", 1, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["poison"]["worst_case"] == subject
