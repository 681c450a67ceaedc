"""Axes become points: order, labels, exceptions, and the parameters behind a label."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.ops.merge_attn_states.params import MergeAttnStatesParams
from harness.scenario.load import load_scenario
from harness.scenario.matrix import case_id, points
from harness.scenario.schema import Scenario

HEAD = "name: x\nsummary: a scenario\nsystem: kernel\nop: merge_attn_states\n"


@pytest.fixture
def parse(tmp_path: Path):  # type: ignore[no-untyped-def]
    def parsed(text: str) -> Scenario:
        path = tmp_path / "x.yaml"
        path.write_text(HEAD + text, encoding="utf-8")
        return load_scenario(path)

    return parsed


def ids(scenario: Scenario) -> list[str]:
    return [case_id(scenario.name, point.labels) for point in points(scenario)]


def test_scenario_without_matrix_has_one_case_of_its_own_name(parse) -> None:  # type: ignore[no-untyped-def]
    assert ids(parse("")) == ["x"]


def test_axes_keep_the_order_of_the_file_and_the_last_varies_fastest(parse) -> None:  # type: ignore[no-untyped-def]
    scenario = parse("matrix:\n  num_tokens: [12, 9]\n  empty_lse: [-inf, +inf]\n")
    assert ids(scenario) == [
        "x[num_tokens=12,empty_lse=-inf]",
        "x[num_tokens=12,empty_lse=+inf]",
        "x[num_tokens=9,empty_lse=-inf]",
        "x[num_tokens=9,empty_lse=+inf]",
    ]


def test_label_stands_for_its_value(parse) -> None:  # type: ignore[no-untyped-def]
    (point,) = points(parse("matrix:\n  num_tokens: {many: 20}\n"))
    assert point.labels == {"num_tokens": "many"}
    assert point.params == MergeAttnStatesParams(num_tokens=20)


def test_axis_that_is_no_parameter_sets_several_at_once(parse) -> None:  # type: ignore[no-untyped-def]
    (point,) = points(parse("matrix:\n  shape:\n    small: {num_tokens: 2, num_with_context: 1}\n"))
    assert point.labels == {"shape": "small"}
    assert point.params == MergeAttnStatesParams(num_tokens=2, num_with_context=1)


def test_matrix_overrides_the_common_parameters(parse) -> None:  # type: ignore[no-untyped-def]
    (point,) = points(parse("params: {num_tokens: 9, num_heads: 2}\nmatrix:\n  num_tokens: [12]\n"))
    assert point.params == MergeAttnStatesParams(num_tokens=12, num_heads=2)


def test_exception_leaves_out_every_point_that_has_all_its_labels(parse) -> None:  # type: ignore[no-untyped-def]
    scenario = parse(
        "matrix:\n  num_tokens: [9, 12]\n  num_heads: [1, 2, 3]\n"
        "except:\n  - {num_tokens: 9, num_heads: [1, 2]}\n  - {num_heads: 3, num_tokens: 12}\n"
    )
    assert ids(scenario) == [
        "x[num_tokens=9,num_heads=3]",
        "x[num_tokens=12,num_heads=1]",
        "x[num_tokens=12,num_heads=2]",
    ]


def test_booleans_are_labelled_as_yaml_writes_them(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(
        "name: x\nsummary: s\nsystem: engine\nmatrix:\n  drafter: [true, false]\n", encoding="utf-8"
    )
    assert ids(load_scenario(path)) == ["x[drafter=true]", "x[drafter=false]"]
