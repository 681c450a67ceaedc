"""Scenario -> cases. A case's id names its scenario and its point, and its seed is derived from the id."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from harness.core.cases import Case, KnownFailure, PoisonPlan
from harness.core.catalog import SITES, SYSTEMS
from harness.core.system_spec import SystemSpec
from harness.scenario import fuzz
from harness.scenario.kernel_override import KernelOverride
from harness.scenario.matrix import ACCURACY, MatrixPoint, accuracy_points, case_id, points
from harness.scenario.schema import FaultUse, Scenario
from harness.scenario.seeds import seed_of
from harness.scenario.usable_oracles import usable

GPU = "gpu"
"""The tag of cases that need a GPU."""
NIGHTLY = "nightly"
"""The tag of cases that take long: a plain run leaves them out."""
NATURAL = "natural"
"""The pattern of :mod:`harness.memory.poison.patterns` that fills nothing, named here as that module needs torch."""


def expand(
    scenario: Scenario,
    *,
    seed: int = 0,
    override: KernelOverride | None = None,
    keep: Callable[[int, str], bool] | None = None,
) -> list[Case]:
    """The cases of one scenario in the order of its matrix; with `override`, those that use one of its ops.

    `keep`, given a case's place and id, can leave cases out before the work of making them.
    """
    if scenario.fuzz is not None:
        return fuzz.cases(scenario, seed, override)
    found, measured = points(scenario), accuracy_points(scenario)
    if override is not None:
        found = _overridden(scenario, scenario.kind, found, override)
        measured = _overridden(scenario, SYSTEMS.get(ACCURACY), measured, override)
    if keep is not None:
        identities = (case_id(scenario.name, point.labels) for point in found)
        found = [point for place, (point, name) in enumerate(zip(found, identities, strict=True)) if keep(place, name)]
    cases = [_case(scenario, point, seed) for point in found]
    return cases + [_accuracy_case(scenario, point, seed) for point in measured]


def expand_all(scenarios: Iterable[Scenario], *, seed: int = 0, override: KernelOverride | None = None) -> list[Case]:
    """The cases of all scenarios, in order."""
    return [case for scenario in scenarios for case in expand(scenario, seed=seed, override=override)]


def fault_cases(scenario: Scenario, *, seed: int = 0) -> list[tuple[FaultUse, Case]]:
    """Each fault that a scenario must catch, with the case on which to try it."""
    if scenario.fuzz is not None:
        return []
    found, measured = points(scenario), accuracy_points(scenario)
    chosen: list[tuple[FaultUse, Case]] = []
    for use in scenario.faults:
        if ACCURACY in use.on:
            point = next(point for point in measured if point.matches(use.on))
            chosen.append((use, _accuracy_case(scenario, point, seed)))
        else:
            point = next(point for point in found if point.matches(use.on))
            chosen.append((use, _case(scenario, point, seed)))
    return chosen


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
    identity = case_id(scenario.name, point.labels)
    system, op, poison = scenario.kind.name, scenario.op, scenario.poison
    patterns = point.patterns or poison.patterns
    sites = tuple(SITES.names()) if poison.sites is None else poison.sites
    return Case(
        id=identity,
        scenario=scenario.name,
        system=system,
        op=op,
        refs=scenario.refs,
        tags=tuple(dict.fromkeys((*scenario.tags, system, *filter(None, (op,)), *_device_tags(scenario)))),
        params=point.params,
        poison=PoisonPlan(patterns=patterns, sites=point.sites or sites, strict=poison.strict),
        oracles=usable(scenario.oracles, patterns, point.params),
        seed=seed_of(identity, seed),
        known=tuple(
            KnownFailure(issue=use.issue, engine=use.engine, versions=use.versions, expect=use.expect)
            for use in scenario.known
            if point.matches(use.on)
        ),
    )


def _device_tags(scenario: Scenario) -> tuple[str, ...]:
    """The tag by which a case says that it is for a GPU, whatever the others run on."""
    return (GPU,) if scenario.device == "cuda" else ()


def _accuracy_case(scenario: Scenario, point: MatrixPoint, seed: int) -> Case:
    """A measurement of accuracy. No memory is filled: stale bits do what they do in production."""
    identity = case_id(scenario.name, point.labels)
    nightly = (NIGHTLY,) if "limit" in point.labels else ()
    return Case(
        id=identity,
        scenario=scenario.name,
        system=ACCURACY,
        refs=scenario.refs,
        tags=tuple(dict.fromkeys((*scenario.tags, ACCURACY, *nightly))),
        params=point.params,
        poison=PoisonPlan(patterns=(NATURAL,), sites=()),
        oracles=(ACCURACY,),
        seed=seed_of(identity, seed),
    )
