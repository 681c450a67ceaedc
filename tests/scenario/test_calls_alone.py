"""The calls that judge a kernel by itself."""

from __future__ import annotations

from harness.scenario.calls_alone import KERNEL, calls_alone, scenarios_of_calls
from harness.scenario.expand import LIMITS, MATRICES
from harness.scenario.load import load_scenarios, shipped_directory
from harness.scenario.selection import is_drawn


def test_each_scenario_that_calls_a_kernel_alone_stands_in_a_folder_that_is_read() -> None:
    shipped = load_scenarios(shipped_directory(), whole=lambda name: False)
    calling = {
        one.name for one in shipped if one.system == KERNEL and MATRICES.isdisjoint(one.tags)
    }
    assert {one.name for one in scenarios_of_calls()} == calling
    assert len(calling) > 60


def test_plain_calls_come_first_then_those_at_limits_then_the_drawn_ones() -> None:
    """A call of 8,192 tokens takes Triton's interpreter a minute, and tells no more of a typo."""
    cases = calls_alone(["write_kv/torch"], seed=5)
    kinds = [(is_drawn(case.id), LIMITS in case.tags) for case in cases]
    assert kinds == sorted(kinds) and len(set(kinds)) == 3
