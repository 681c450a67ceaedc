"""The scenarios that ship: complete, consistent with the catalog, and small enough to run at
once.
"""

from __future__ import annotations

import pytest

from harness.core.catalog import ENGINES, FAULTS, ORACLES, SITES, SYSTEMS
from harness.core.op_params import KERNEL_PARAMS
from harness.scenario.expand import expand, fault_cases
from harness.scenario.load import load_scenarios, scenario_files, shipped_directory

SCENARIOS = load_scenarios(shipped_directory())


@pytest.mark.parametrize(
    "path", sorted(shipped_directory().rglob("*.y*ml")), ids=lambda path: path.name
)
def test_file_is_named_like_its_scenario(path) -> None:  # type: ignore[no-untyped-def]
    assert path.suffix == ".yaml"
    assert path.stem in {scenario.name for scenario in SCENARIOS}


FAMILIES = {
    "kernels": ("kernel",),
    "conditions": ("kernel", "engine"),
    "matrix": ("kernel",),
    "engine": ("engine", "moves"),
    "fuzz": ("fuzz",),
}
"""The folders of the shipped scenarios -> the systems of what lies there. Beside them each engine
has a folder with its name.
"""


def systems_of(family: str) -> tuple[str, ...]:
    """The systems whose scenarios lie in the folder `family`; none if it is no family."""
    if family in ENGINES.names():
        return tuple(name for name in SYSTEMS.names() if name.partition("-")[0] == family)
    return FAMILIES.get(family, ())


def test_each_file_lies_in_the_folder_of_its_family() -> None:
    known = {scenario.name: scenario for scenario in SCENARIOS}
    wrong = []
    for path in scenario_files(shipped_directory()):
        scenario, family = known[path.stem], path.parent.name
        system = "fuzz" if scenario.fuzz else scenario.system
        is_right = path.parents[1] == shipped_directory() and system in systems_of(family)
        is_right &= (family == "matrix") == scenario.name.startswith("kernel-matrix-")
        if not is_right:
            wrong.append(str(path))
    assert wrong == []


@pytest.mark.parametrize("number", ["38359", "35175", "36540", "43961", "42444"])
def test_each_of_the_five_vllm_fixes_has_a_scenario_for_the_engine(number: str) -> None:
    ref = f"vllm-project/vllm#{number}"
    assert any(scenario.system == "engine" and ref in scenario.refs for scenario in SCENARIOS)


@pytest.mark.parametrize("fault", FAULTS.names())
def test_every_fault_is_caught_by_a_scenario_that_names_its_pr(fault: str) -> None:
    using = [
        scenario for scenario in SCENARIOS if any(use.name == fault for use in scenario.faults)
    ]
    assert using
    assert any(FAULTS.get(fault).ref in scenario.refs for scenario in using)


@pytest.mark.parametrize("op", sorted(KERNEL_PARAMS))
def test_every_op_has_a_scenario_for_its_kernels(op: str) -> None:
    assert any(scenario.op == op for scenario in SCENARIOS)


def test_every_oracle_is_used() -> None:
    used = {name for scenario in SCENARIOS for case in expand(scenario) for name in case.oracles}
    # A plug-in alone can crash, change its process, or deal with the judge in place of its inputs.
    assert used | {"crash", "process", "honest"} == set(ORACLES.names())


def test_scenarios_with_references_say_what_went_wrong() -> None:
    assert [scenario.name for scenario in SCENARIOS if scenario.refs and not scenario.why] == []


def test_faults_are_tried_on_cases_that_poison_the_memory_they_blame() -> None:
    for scenario in SCENARIOS:
        for use, case in fault_cases(scenario):
            poisoned = set(case.poison.sites)
            assert set(use.blames) <= set(SITES.names())
            assert set(use.blames) <= poisoned, (scenario.name, use.name)


def test_listed_cases_are_few_enough_to_run_at_every_change() -> None:
    listed = [
        case
        for scenario in SCENARIOS
        # Calls that cover conditions take a few hundredths of a second.
        # Cases of engines run where these are installed: elsewhere they cost nothing.
        if scenario.fuzz is None
        and scenario.device == "any"
        and scenario.system.partition("-")[0] not in ENGINES.names()
        for case in expand(scenario)
        # These run at night, not at every change.
        if "nightly" not in case.tags
    ]
    assert 70 <= len(listed) <= 1500


def test_case_ids_are_unique() -> None:
    found = [case.id for scenario in SCENARIOS for case in expand(scenario)]
    assert len(found) == len(set(found))
