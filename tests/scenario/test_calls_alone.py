"""The calls that judge a kernel by itself."""

from __future__ import annotations

from itertools import groupby, islice

import pytest

from harness.core.conditions.model import Shown
from harness.core.conditions.table import SPACES
from harness.scenario.calls_alone import KERNEL, calls_alone, scenarios_of_calls
from harness.scenario.expand import LIMITS, MATRICES
from harness.scenario.load import load_scenarios, shipped_directory
from harness.scenario.selection import is_drawn
from trust.arrays.write_op_conditions import NAMES, shown_in


def test_each_scenario_that_calls_a_kernel_alone_stands_in_a_folder_that_is_read() -> None:
    shipped = load_scenarios(shipped_directory(), whole=lambda name: False)
    calling = {
        one.name for one in shipped if one.system == KERNEL and MATRICES.isdisjoint(one.tags)
    }
    assert {one.name for one in scenarios_of_calls()} == calling
    assert len(calling) > 60


def test_plain_calls_come_first_and_those_at_limits_between_two_halves_of_the_drawn_ones() -> None:
    """What takes longer tells no more of a typo, and half of the drawn calls shows nearly all
    pairs.
    """
    cases = calls_alone(["write_kv/torch"], seed=5)
    kinds = [
        "drawn" if is_drawn(case.id) else "limit" if LIMITS in case.tags else "plain"
        for case in cases
    ]
    stages = [(kind, len(list(group))) for kind, group in groupby(kinds)]
    assert [kind for kind, _ in stages] == ["plain", "drawn", "limit", "drawn"]
    assert stages[3][1] - stages[1][1] in (0, 1)


def test_each_kernel_of_a_file_makes_its_plain_calls_before_any_makes_drawn_ones() -> None:
    cases = calls_alone(["merge_attn_states/torch", "write_kv/torch"], seed=5)
    first = next(place for place, case in enumerate(cases) if is_drawn(case.id))
    plain = [case for case in cases if not is_drawn(case.id) and LIMITS not in case.tags]
    assert cases[:first] == plain and {case.op for case in plain} == {
        "merge_attn_states",
        "write_kv",
    }


@pytest.mark.parametrize(
    "op",
    [
        pytest.param(op, marks=() if op == "merge_attn_states" else pytest.mark.nightly)
        for op in NAMES
    ],
)
def test_half_of_the_calls_of_a_scenario_of_conditions_shows_nine_pairs_in_ten(op: str) -> None:
    name = NAMES[op][0]
    found = next(one for one in scenarios_of_calls() if one.name == name)
    shown = Shown(SPACES[op])
    for points, _ in islice(shown_in(found), len(found.matrix["call"]) // 2):
        shown.add(points)
    met, every = shown.counts(2)
    assert met >= 0.9 * every
