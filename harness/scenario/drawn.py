"""The cases of a scenario that draws them, and the case of an id.

The id of a drawn case is its parameters, so it stands for the same case whatever is drawn later.
`fuzz[op=write_kv,seed=52]@num_tokens=3,num_padded=1,patterns=[nan,max]` is a call of `write_kv`;
all other parameters have their defaults. It is written and read as a case with changed values
(:mod:`harness.scenario.variant`). What stands before the `@` gives the seed of the inputs.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import islice

from harness.core.cases import Case, PoisonPlan
from harness.core.catalog import SITES, SYSTEMS
from harness.core.kernels import SOUND
from harness.core.op_params import KERNEL_PARAMS
from harness.scenario import variant
from harness.scenario.matrix import MatrixPoint
from harness.scenario.override import KernelOverride
from harness.scenario.point_case import case_of_point, seed_of
from harness.scenario.schema import Scenario

NUM_VARIANTS = 64
"""Sound variants of one seed of a selftest's controls."""
ENGINE = "engine"
"""In place of an op, in the id of a drawn case of the engine."""
SEEDS = 1_000_000
"""Seeds of inputs: enough that the draws of a run hardly ever share one, and short in an id."""
_START = re.compile(
    r"^(?P<name>[a-z0-9-]+)\[(?:kernel=(?P<kernel>[^,\]]+),)?op=(?P<op>[a-z0-9_]+),"
    r"seed=(?P<seed>\d{1,18})\]$",
    re.ASCII,
)


def drawn_cases(
    scenario: Scenario, seed: int, override: KernelOverride | None = None
) -> list[Case]:
    """The first `examples` draws of a fuzz scenario; with `override`, only draws that use one of
    its ops.
    """
    assert scenario.fuzz is not None
    drawn = (_drawn(scenario, seed, number, override) for number in range(scenario.fuzz.examples))
    return [case for case in drawn if case is not None]


def control_cases(scenario: Scenario, seed: int, num_draws: int) -> list[Case]:
    """The first draws of a fuzz scenario on the sound variants of `seed`, in turns; ops without one
    are left out.
    """
    named = cache(lambda i: KernelOverride.named(f"{SOUND}{seed * NUM_VARIANTS + i}"))
    drawn = (
        _drawn(scenario, seed, number, named(number % NUM_VARIANTS))
        # Some draws give no case: their op has no sound variant.
        for number in range(3 * num_draws)
    )
    return list(islice((case for case in drawn if case is not None), num_draws))


def drawn_case(
    scenario: Scenario, identity: str, override: KernelOverride | None = None
) -> Case | None:
    """The case of the id of a draw; None for any other id.

    Raises InputError for values that such a case cannot have.
    """
    start, changes = variant.split(identity)
    match = _START.match(start)
    if match is None or scenario.fuzz is None or match["name"] != scenario.name:
        return None
    op = None if match["op"] == ENGINE else match["op"]
    # A scenario that draws sequences alone has no draw of an op.
    if op is not None and (op not in KERNEL_PARAMS or scenario.fuzz.draws != "all"):
        return None
    if override is None and match["kernel"] and match["kernel"].startswith(SOUND):
        # No option need name a sound variant: its name is enough to make it.
        override = KernelOverride.named(match["kernel"])
    if match["kernel"] != (override.short_name if override else None):
        return None
    base = _start(scenario, op, match["seed"], override)
    if not changes:
        return variant.vary(base, base.params, base.poison)
    # An id may say a default too: that of a draw that was shrunk does.
    return variant.changed(base, changes).but(id=identity)


def _drawn(
    scenario: Scenario, seed: int, number: int, override: KernelOverride | None
) -> Case | None:
    """Draw `number` of a seed; None if it calls no op of `override`."""
    # Draws import every condition. A list draws no case and is instant.
    from harness.scenario.draws import draw, draw_sequence

    kind = scenario.fuzz.draws if scenario.fuzz is not None else "all"
    name = f"{seed}:{number}"
    drawn = draw(name) if kind == "all" else draw_sequence(name, kind == "states")
    params = drawn.params
    if override is not None:
        point = override.apply(SYSTEMS.get(drawn.system), drawn.op, MatrixPoint({}, params))
        if point is None:
            return None
        params = point.params
    base = _start(scenario, drawn.op, str(seed_of(name) % SEEDS), override)
    return variant.vary(base, params, drawn.poison)


def _start(scenario: Scenario, op: str | None, seed: str, override: KernelOverride | None) -> Case:
    """The case that the ids of draws begin with: every parameter has its default.

    It has all oracles of the scenario. What a draw cannot show, :func:`variant.vary` leaves out.
    """
    system = "kernel" if op else "engine"
    params = SYSTEMS.get(system).model(op)()
    labels = {"op": op or ENGINE, "seed": seed}
    if override is not None:
        fields = SYSTEMS.get(system).kernels_of(op).items()
        replaced = [field for field, of_field in fields if of_field in override.ops]
        params = params.but(**dict.fromkeys(replaced, override.short_name))
        labels = {"kernel": override.short_name} | labels
    return case_of_point(
        scenario,
        MatrixPoint(labels, params),
        PoisonPlan(patterns=("nan", "zeros"), sites=tuple(SITES.names())),
        system=system,
        op=op,
        oracles=scenario.oracles,
    )
