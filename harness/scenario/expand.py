"""Scenario -> cases, from the points of its matrix or drawn.

The id of a case names its scenario and its point. On CUDA a kernel's twin may replace a kernel.
"""

from __future__ import annotations

from collections.abc import Callable

from harness.core.cases import Case, KnownFailure, PoisonPlan
from harness.core.catalog import SITES, SYSTEMS, cuda_twins
from harness.core.engine_params import AccuracyParams
from harness.core.systems import SystemSpec
from harness.scenario.drawn import drawn_cases
from harness.scenario.matrix import (
    ACCURACY,
    MatrixPoint,
    accuracy_points,
    case_id,
    is_long,
    is_selected,
    points,
)
from harness.scenario.override import KernelOverride
from harness.scenario.point_case import case_of_point
from harness.scenario.schema import FaultUse, Scenario

GPU = "gpu"
"""The tag of cases that need a GPU."""
NIGHTLY = "nightly"
"""The tag of cases that take minutes, which need their id or `-m nightly`."""
LONG = "long"
"""The tag of cases that a run of everything leaves out, because others show as much in less
time."""
LIMITS = "limits"
"""The tag of calls at the sizes and values of released models, past the last class of a
condition."""
MATRICES = frozenset({"kernel-matrix", "matrix-conditions", "matrix-reject"})
"""Tags of scenarios with thousands of cells for GPUs. A plain run takes the first cell."""
NATURAL = "natural"
"""The pattern of :mod:`torch_poison.patterns` that fills nothing.

That module needs torch.
"""


def expand(
    scenario: Scenario,
    *,
    seed: int = 0,
    override: KernelOverride | None = None,
    keep: Callable[[int, str], bool] | None = None,
) -> list[Case]:
    """The cases of one scenario in the order of its matrix; with `override`, only cases that use
    one of its ops.

    `keep(place, id)` says whether to make a case of the matrix.
    """
    if scenario.fuzz is not None:
        return drawn_cases(scenario, seed, override)
    found = points(scenario)
    measured = list(accuracy_points(scenario))
    if override is not None:
        found = _overridden(scenario, scenario.kind, found, override)
        measured = _overridden(scenario, SYSTEMS.get(ACCURACY), measured, override)
    if keep is not None:
        found = [
            p for place, p in enumerate(found) if keep(place, case_id(scenario.name, p.labels))
        ]
    return [_case(scenario, point, seed) for point in (*found, *measured)]


def fault_cases(scenario: Scenario, *, seed: int = 0) -> list[tuple[FaultUse, Case]]:
    """Each fault that a scenario must catch, with the case on which to try it."""
    if scenario.fuzz is not None:
        return []
    found = [*points(scenario), *accuracy_points(scenario)]
    tried = [
        (use, next(one for one in found if is_selected(one.labels, use.on)))
        for use in scenario.faults
    ]
    return [(use, _case(scenario, point, seed)) for use, point in tried]


def _overridden(
    scenario: Scenario, system: SystemSpec, found: list[MatrixPoint], override: KernelOverride
) -> list[MatrixPoint]:
    replaced = filter(None, (override.apply(system, scenario.op, point) for point in found))
    # Points that differed in the replaced kernel alone are one point now.
    alike: dict[str, MatrixPoint] = {}
    for point in replaced:
        alike.setdefault(case_id(scenario.name, point.labels), point)
    return list(alike.values())


def _case(scenario: Scenario, point: MatrixPoint, seed: int) -> Case:
    if seed:
        # Other prompts than the scenario's author saw.
        point = MatrixPoint(point.labels, point.params.varied())
    if isinstance(point.params, AccuracyParams):
        # No memory is filled: stale bits have the effect that they have in production.
        poison = PoisonPlan(patterns=(NATURAL,))
        tags: tuple[str, ...] = ()
        if "limit" in point.labels:
            tags = (NIGHTLY,)
        elif is_long(scenario, point.labels):
            tags = (LONG,)
        return case_of_point(
            scenario, point, poison, system=ACCURACY, seed=seed, tags=tags, oracles=(ACCURACY,)
        )
    settings = scenario.poison
    patterns = point.patterns or settings.patterns
    sites = point.sites or settings.sites
    has_tag = {
        GPU: scenario.device == "cuda",
        LONG: is_long(scenario, point.labels),
    }
    known = [
        use.model_dump(exclude={"on"})
        for use in scenario.known
        if is_selected(point.labels, use.on)
    ]
    return case_of_point(
        scenario,
        point,
        PoisonPlan(
            patterns=patterns,
            sites=tuple(SITES.names()) if sites is None else sites,
            strict=settings.strict,
        ),
        system=scenario.kind.name,
        op=scenario.op,
        seed=seed,
        tags=tuple(tag for tag, has_it in has_tag.items() if has_it),
        known=tuple(map(KnownFailure.model_validate, known)),
    )


def on_device(case: Case, device: str) -> Case:
    """`case` with the kernels that run on `device`. Its id and seed stay the same."""
    if device != "cuda" or not case.kind.uses_twins:
        return case
    twins = cuda_twins(case.kernels())
    return case.but(params=case.params.but(**twins)) if twins else case
