"""The known bugs with a script, and why the others have none. The tables decide this, nothing is run."""

from __future__ import annotations

from harness.core.cases import Case
from harness.core.catalog import FAULTS
from harness.core.errors import InputError
from harness.diagnose.script.recipes import RECIPES
from harness.diagnose.script.render import Export, Story, render, why_not
from harness.scenario.expand import fault_cases
from harness.scenario.load import load_scenarios

ACCURACY = "of accuracy"
NOT_SHOWN = frozenset(("merge.both-sides-empty", "merge.prefix-strides-for-suffix", "router.duplicates-from-nan-rows"))
"""Bugs without a script: a script with the kernel's own source would pass, as its scene does not trigger them."""


def tried() -> dict[str, list[Case]]:
    """Known bug -> cases on which the shipped scenarios try it, in the order of the catalog."""
    found: dict[str, list[Case]] = {fault.name: [] for fault in FAULTS}
    for scenario in load_scenarios(None):
        for use, case in fault_cases(scenario):
            found[use.name].append(case)
    return found


def scripted() -> dict[str, list[Case]]:
    """Known bug with a script -> cases for which the script can be made."""
    return {name: fit for name, cases in tried().items() if (fit := [c for c in cases if not refusal(name, c)])}


def refused() -> dict[str, str]:
    """Known bug without a script -> the reason in a few words."""
    found = {}
    for name, cases in tried().items():
        reasons = [refusal(name, case) for case in cases]
        if all(reasons):
            # A reason about the engine or a kernel helps more than a reason about accuracy.
            found[name] = next((reason for reason in reasons if reason != ACCURACY), ACCURACY)
    return found


def refusal(fault: str, case: Case) -> str:
    """Why no script shows `fault` on `case`, in a few words; empty if one does."""
    if case.kind.asks_canary and not case.kind.serves:
        return ACCURACY
    if not case.kind.shows_launches:
        return f"of system {case.system}"
    if why_not(case, fault):
        return f"op {case.op}, no scene" if case.op else "in a serving run, without a scene"
    if fault in RECIPES:
        return ""
    if fault in NOT_SHOWN:
        return "the script of the kernel's own source does not show it"
    # A smaller case has a source of the same length.
    try:
        render(Export(case, fault, Story("A bug.", (FAULTS.get(fault).ref,))))
    except InputError:
        return "the kernel's own source is too long"
    return ""
