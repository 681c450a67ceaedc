"""The calls that judge a kernel by itself."""

from __future__ import annotations

from harness.scenario.calls_alone import KERNEL, scenarios_of_calls
from harness.scenario.expand import MATRICES
from harness.scenario.load import load_scenarios, shipped_directory


def test_each_scenario_that_calls_a_kernel_alone_stands_in_a_folder_that_is_read() -> None:
    shipped = load_scenarios(shipped_directory(), whole=lambda name: False)
    calling = {
        one.name for one in shipped if one.system == KERNEL and MATRICES.isdisjoint(one.tags)
    }
    assert {one.name for one in scenarios_of_calls()} == calling
    assert len(calling) > 60
