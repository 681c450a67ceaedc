"""Scenario -> cases. A case's id names its scenario and its point, and its seed is derived from the id."""

from __future__ import annotations

from collections.abc import Iterable

from harness.catalog import SITES
from harness.plan import fuzz
from harness.plan.evidence import usable
from harness.plan.override import KernelOverride
from harness.plan.seeds import seed_of
from harness.records import Case, PoisonPlan
from harness.scenario.matrix import MatrixPoint, case_id, points
from harness.scenario.schema import FaultUse, Scenario


def expand(scenario: Scenario, *, seed: int = 0, override: KernelOverride | None = None) -> list[Case]:
    """The cases of one scenario in the order of its matrix; with `override`, those that use one of its ops."""
    if scenario.fuzz is not None:
        return fuzz.cases(scenario, seed, override)
    found = points(scenario)
    if override is not None:
        found = _overridden(scenario, found, override)
    return [_case(scenario, point, seed) for point in found]


def expand_all(scenarios: Iterable[Scenario], *, seed: int = 0, override: KernelOverride | None = None) -> list[Case]:
    """The cases of all scenarios, in order."""
    return [case for scenario in scenarios for case in expand(scenario, seed=seed, override=override)]


def fault_cases(scenario: Scenario, *, seed: int = 0) -> list[tuple[FaultUse, Case]]:
    """Each fault that a scenario must catch, with the case on which to try it."""
    if scenario.fuzz is not None:
        return []
    found = points(scenario)
    chosen = [(use, next(point for point in found if point.matches(use.on))) for use in scenario.faults]
    return [(use, _case(scenario, point, seed)) for use, point in chosen]


def _overridden(scenario: Scenario, found: list[MatrixPoint], override: KernelOverride) -> list[MatrixPoint]:
    replaced: dict[str, MatrixPoint] = {}
    for point in found:
        params = override.apply(scenario.system or "", scenario.op, point.params)
        if params is not None:
            labels = override.relabel(point.labels, scenario.system or "", scenario.op)
            replaced.setdefault(case_id(scenario.name, labels), MatrixPoint(labels, params))
    return list(replaced.values())


def _case(scenario: Scenario, point: MatrixPoint, seed: int) -> Case:
    identity = case_id(scenario.name, point.labels)
    system = scenario.system or ""
    params = scenario.model(**point.params).model_dump(mode="json")
    poison = scenario.poison
    return Case(
        id=identity,
        scenario=scenario.name,
        system=system,
        refs=scenario.refs,
        tags=tuple(dict.fromkeys((*scenario.tags, system, *filter(None, (scenario.op,))))),
        params={"op": scenario.op, **params} if scenario.op else params,
        poison=PoisonPlan(
            patterns=poison.patterns,
            sites=tuple(SITES.names()) if poison.sites is None else poison.sites,
            strict=poison.strict,
        ),
        oracles=usable(scenario.oracles, poison.patterns, params),
        seed=seed_of(identity, seed),
    )
