"""The axes `pattern` and `site` vary the poison of a case, not a parameter."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.catalog import SITES
from harness.core.errors import HarnessError
from harness.ops.merge_attn_states.params import MergeAttnStatesParams
from harness.scenario.expand import expand
from harness.scenario.load import load_scenario
from harness.scenario.matrix import num_points
from harness.scenario.schema import Scenario

HEAD = "name: x\nsummary: a scenario\nsystem: kernel\nop: merge_attn_states\n"


def scenario_of(tmp_path: Path, text: str) -> Scenario:
    path = tmp_path / "x.yaml"
    path.write_text(HEAD + text, encoding="utf-8")
    return load_scenario(path)


def test_a_case_is_filled_with_its_pattern_on_its_site_alone(tmp_path: Path) -> None:
    cases = expand(scenario_of(tmp_path, "matrix: {pattern: [nan, max], site: [output, lse]}\n"))
    assert [case.id for case in cases] == [
        "x[pattern=nan,site=output]",
        "x[pattern=nan,site=lse]",
        "x[pattern=max,site=output]",
        "x[pattern=max,site=lse]",
    ]
    assert [case.poison.sites for case in cases] == [("output",), ("lse",), ("output",), ("lse",)]
    assert all(case.params == MergeAttnStatesParams() for case in cases)


def test_zeros_stand_beside_each_pattern_so_that_interference_shows(tmp_path: Path) -> None:
    cases = expand(scenario_of(tmp_path, "matrix: {pattern: [inf, zeros]}\n"))
    assert [case.poison.patterns for case in cases] == [("inf", "zeros"), ("zeros",)]


def test_an_axis_of_patterns_alone_leaves_the_sites_of_the_scenario(tmp_path: Path) -> None:
    (everywhere,) = expand(scenario_of(tmp_path, "matrix: {pattern: [nan]}\n"))
    assert everywhere.poison.sites == tuple(SITES.names())


@pytest.mark.parametrize(
    ("axis", "word"),
    [
        ("pattern: [purple]", "purple"),
        ("site: [kv.tale]", "kv.tail"),
        ("site: {a: output}", "site"),
    ],
)
def test_a_label_that_is_no_pattern_and_no_site_is_refused(
    tmp_path: Path, axis: str, word: str
) -> None:
    with pytest.raises(HarnessError, match=word):
        scenario_of(tmp_path, f"matrix: {{{axis}}}\n")


@pytest.mark.parametrize(
    "excluded", ["", "except: [{num_heads: 2}]\n", "except: [{num_heads: 2, pattern: max}]\n"]
)
def test_points_that_differ_in_their_poison_are_counted_without_making_them(
    tmp_path: Path, excluded: str
) -> None:
    matrix = "matrix: {pattern: [nan, max], num_heads: [1, 2], site: [output, lse]}\n"
    scenario = scenario_of(tmp_path, matrix + excluded)
    assert num_points(scenario) == len(expand(scenario))
