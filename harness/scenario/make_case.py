"""A case of a scenario from one point of it: id, tags, oracles and seed."""

from __future__ import annotations

import hashlib

from harness.core.cases import Case, KnownFailure, PoisonPlan
from harness.core.catalog import ORACLES
from harness.core.params import Params
from harness.scenario.matrix import Labels, case_id
from harness.scenario.schema import Scenario


def make_case(
    scenario: Scenario,
    labels: Labels,
    params: Params,
    poison: PoisonPlan,
    *,
    system: str,
    op: str | None = None,
    seed: int = 0,
    tags: tuple[str, ...] = (),
    oracles: tuple[str, ...] | None = None,
    known: tuple[KnownFailure, ...] = (),
) -> Case:
    """The case of the point `labels`. `tags` are added to the scenario's. Default `oracles`: all usable ones."""
    identity = case_id(scenario.name, labels)
    return Case(
        id=identity,
        scenario=scenario.name,
        system=system,
        op=op,
        refs=scenario.refs,
        tags=tuple(dict.fromkeys((*scenario.tags, system, *filter(None, (op,)), *tags))),
        params=params,
        poison=poison,
        oracles=usable(scenario.oracles, poison.patterns, params) if oracles is None else oracles,
        seed=seed_of(identity, seed),
        known=known,
    )


def usable(oracles: tuple[str, ...], patterns: tuple[str, ...], params: Params) -> tuple[str, ...]:
    """`oracles` without the ones that would have nothing to judge in a case with these parameters and patterns."""
    given = params.gives() | {""} | ({"patterns"} if len(patterns) > 1 else set())
    return tuple(name for name in oracles if ORACLES.get(name).needs in given)


def seed_of(identity: str, seed: int = 0) -> int:
    """The seed (31 bits) of the case `identity` in a run with `--seed`. All random numbers of the case come from it."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{identity}".encode()).digest()[:4], "big") >> 1
