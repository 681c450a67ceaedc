"""Drawn cases. The id `fuzz[seed=7,draw=12]` alone reproduces its case."""

from __future__ import annotations

import re

from harness.core.cases import Case
from harness.core.catalog import SYSTEMS
from harness.scenario.draws import draw
from harness.scenario.kernel_override import KernelOverride
from harness.scenario.make_case import make_case
from harness.scenario.schema import Scenario

_ID = re.compile(
    r"^(?P<name>[a-z0-9-]+)\[(?:kernel=(?P<kernel>[^,]+),)?seed=(?P<seed>\d{1,18}),draw=(?P<draw>\d{1,9})\]$", re.ASCII
)


def cases(scenario: Scenario, seed: int, override: KernelOverride | None = None) -> list[Case]:
    """The first `examples` draws of a fuzz scenario; with `override`, only draws that use one of its ops."""
    assert scenario.fuzz is not None
    drawn = (_case(scenario, seed, number, override) for number in range(scenario.fuzz.examples))
    return [case for case in drawn if case is not None]


def case_of(scenario: Scenario, identity: str, override: KernelOverride | None = None) -> Case | None:
    """The case of a fuzz id with any seed and number; None for any other id."""
    match = _ID.match(identity)
    kernel = override.short_name if override else None
    if match is None or match["name"] != scenario.name or match["kernel"] != kernel:
        return None
    return _case(scenario, int(match["seed"]), int(match["draw"]), override)


def _case(scenario: Scenario, seed: int, number: int, override: KernelOverride | None) -> Case | None:
    drawn = draw(f"{seed}:{number}")
    system, params = SYSTEMS.get(drawn.system), drawn.params
    labels = {"seed": str(seed), "draw": str(number)}
    if override is not None:
        replaced = override.apply(system, drawn.op, params)
        if replaced is None:
            return None
        params, labels = replaced, override.relabel(labels, system, drawn.op)
    return make_case(scenario, labels, params, drawn.poison, system=drawn.system, op=drawn.op)
