"""The known bugs as scripts: each fault with the case that its scenario tries it on, not made
smaller.
"""

from __future__ import annotations

import functools

from harness.core.cases import Case
from harness.core.catalog import FAULTS
from harness.diagnose.script.recipes import RECIPES
from harness.diagnose.script.render import Export, Story, render, why_of
from harness.scenario.expand import fault_cases
from harness.scenario.load import load_scenarios

SCENARIOS = {scenario.name: scenario for scenario in load_scenarios(None)}


def declared() -> list[tuple[str, Case]]:
    """Each fault that has a recipe, with every kernel or engine case that a scenario declares for
    it.
    """
    return [
        (use.name, case)
        for scenario in SCENARIOS.values()
        for use, case in fault_cases(scenario)
        if use.name in RECIPES and case.system in ("kernel", "engine")
    ]


@functools.cache
def script_of(
    fault: str | None, case: Case, *, is_pytest: bool = False, title: str = "A bug."
) -> str:
    """The script of one case."""
    refs = (FAULTS.get(fault).ref,) if fault else case.refs
    story = Story(
        title,
        refs,
        why=why_of(case.scenario, fault),
        finding="NaN in live rows",
        case=case.id,
        versions="torch 2.13.0",
    )
    return render(Export(case, fault, story, is_pytest=is_pytest))
