"""A case whose oracles have nothing to judge is refused: it would pass whatever it did."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.errors import InputError
from harness.scenario.expand import expand
from harness.scenario.load import load_scenarios
from tests.transcripts import Approved

SCENARIO = """\
name: own
summary: an engine without a task
system: engine
poison: {patterns: [nan]}
oracles: [ORACLE]
"""


def test_an_oracle_that_needs_what_no_case_gives_is_no_judge(
    tmp_path: Path, approved: Approved
) -> None:
    (tmp_path / "own.yaml").write_text(SCENARIO.replace("ORACLE", "answers"))
    with approved.raises(InputError):
        [expand(scenario) for scenario in load_scenarios(tmp_path)]
    (tmp_path / "own.yaml").write_text(SCENARIO.replace("ORACLE", "finite, answers"))
    (scenario,) = load_scenarios(tmp_path)
    assert [case.oracles for case in expand(scenario)] == [("finite",)]


def test_a_comparison_of_patterns_needs_two(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(SCENARIO.replace("ORACLE", "non_interference"))
    with pytest.raises(InputError, match="non_interference"):
        [expand(scenario) for scenario in load_scenarios(tmp_path)]
