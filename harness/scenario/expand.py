"""Scenario -> cases. The id of a case names its scenario and its point."""

from __future__ import annotations

from collections.abc import Callable

from harness.core.cases import Case, KnownFailure, PoisonPlan
from harness.core.catalog import SITES, SYSTEMS
from harness.core.engine_params import AccuracyParams
from harness.core.systems import SystemSpec
from harness.scenario import fuzz
from harness.scenario.kernel_override import KernelOverride
from harness.scenario.make_case import make_case
from harness.scenario.matrix import ACCURACY, MatrixPoint, accuracy_points, case_id, points
from harness.scenario.schema import FaultUse, Scenario

GPU = "gpu"
"""The tag of cases that need a GPU."""
NIGHTLY = "nightly"
"""The tag of long cases, which a plain run leaves out."""
NATURAL = "natural"
"""The pattern of :mod:`harness.memory.poison.patterns` that fills nothing. That module needs torch."""


def expand(
    scenario: Scenario,
    *,
    seed: int = 0,
    override: KernelOverride | None = None,
    keep: Callable[[int, str], bool] | None = None,
) -> list[Case]:
    """The cases of one scenario in the order of its matrix; with `override`, only cases that use one of its ops.

    `keep(place, id)` says whether to make a case of the matrix.
    """
    if scenario.fuzz is not None:
        return fuzz.cases(scenario, seed, override)
    found, measured = points(scenario), accuracy_points(scenario)
    if override is not None:
        found = _overridden(scenario, scenario.kind, found, override)
        measured = _overridden(scenario, SYSTEMS.get(ACCURACY), measured, override)
    if keep is not None:
        found = [p for place, p in enumerate(found) if keep(place, case_id(scenario.name, p.labels))]
    return [_case(scenario, point, seed) for point in (*found, *measured)]


def fault_cases(scenario: Scenario, *, seed: int = 0) -> list[tuple[FaultUse, Case]]:
    """Each fault that a scenario must catch, with the case on which to try it."""
    if scenario.fuzz is not None:
        return []
    found = [*points(scenario), *accuracy_points(scenario)]
    tried = [(use, next(point for point in found if point.matches(use.on))) for use in scenario.faults]
    return [(use, _case(scenario, point, seed)) for use, point in tried]


def _overridden(
    scenario: Scenario, system: SystemSpec, found: list[MatrixPoint], override: KernelOverride
) -> list[MatrixPoint]:
    replaced: dict[str, MatrixPoint] = {}
    for point in found:
        params = override.apply(system, scenario.op, point.params)
        if params is not None:
            labels = override.relabel(point.labels, system, scenario.op)
            replaced.setdefault(case_id(scenario.name, labels), MatrixPoint(labels, params))
    return list(replaced.values())


def _case(scenario: Scenario, point: MatrixPoint, seed: int) -> Case:
    if isinstance(point.params, AccuracyParams):
        return _accuracy_case(scenario, point, seed)
    poison = scenario.poison
    sites = tuple(SITES.names()) if poison.sites is None else poison.sites
    known = [
        KnownFailure(issue=use.issue, engine=use.engine, versions=use.versions, expect=use.expect)
        for use in scenario.known
        if point.matches(use.on)
    ]
    return make_case(
        scenario,
        point.labels,
        point.params,
        PoisonPlan(patterns=point.patterns or poison.patterns, sites=point.sites or sites, strict=poison.strict),
        system=scenario.kind.name,
        op=scenario.op,
        seed=seed,
        tags=(GPU,) if scenario.device == "cuda" else (),
        known=tuple(known),
    )


def _accuracy_case(scenario: Scenario, point: MatrixPoint, seed: int) -> Case:
    """A measurement of accuracy. No memory is filled: stale bits have the effect that they have in production."""
    return make_case(
        scenario,
        point.labels,
        point.params,
        PoisonPlan(patterns=(NATURAL,)),
        system=ACCURACY,
        seed=seed,
        tags=(NIGHTLY,) if "limit" in point.labels else (),
        oracles=(ACCURACY,),
    )
