"""A point of a scenario as a case: its id, its oracles, and the seed of its inputs."""

from __future__ import annotations

import hashlib

from harness.core.cases import Case, KnownFailure, PoisonPlan
from harness.core.catalog import ORACLES, SYSTEMS
from harness.core.errors import InputError
from harness.core.oracles import BETWEEN_PATTERNS
from harness.core.params import Params
from harness.scenario.matrix import MatrixPoint, case_id
from harness.scenario.schema import Scenario


def case_of_point(
    scenario: Scenario,
    point: MatrixPoint,
    poison: PoisonPlan,
    *,
    system: str,
    op: str | None = None,
    seed: int = 0,
    tags: tuple[str, ...] = (),
    oracles: tuple[str, ...] | None = None,
    known: tuple[KnownFailure, ...] = (),
) -> Case:
    """The case of `point`.

    `tags` are added to the scenario's. Default `oracles`: all usable ones.
    """
    identity = case_id(scenario.name, point.labels)
    short_name = point.labels.get("kernel")
    kernels = SYSTEMS.get(system).kernels_of(op)
    idle = point.params.idle_kernels()
    axes = {axis for axis in point.labels if axis not in idle}
    return Case(
        id=identity,
        scenario=scenario.name,
        system=system,
        op=op,
        refs=scenario.refs,
        tags=tuple(dict.fromkeys((*scenario.tags, system, *filter(None, (op,)), *tags))),
        params=point.params,
        poison=poison,
        oracles=(
            usable(scenario.oracles, poison.patterns, point.params) if oracles is None else oracles
        ),
        seed=seed_of(identity, seed),
        named=tuple(
            name for name in kernels if name in axes or getattr(point.params, name) == short_name
        ),
        known=known,
    )


def usable(oracles: tuple[str, ...], patterns: tuple[str, ...], params: Params) -> tuple[str, ...]:
    """`oracles` without the ones that would have nothing to judge in a case with these parameters
    and patterns.

    Raises InputError if none is left: the case would pass whatever it did.
    """
    given = params.gives() | {""} | ({BETWEEN_PATTERNS} if len(patterns) > 1 else set())
    found = tuple(name for name in oracles if ORACLES.get(name).needs in given)
    if oracles and not found:
        raise InputError(
            f"oracles {', '.join(oracles)}: none has anything to judge in a case with these"
            " parameters and patterns"
        )
    return found


def seed_of(identity: str, seed: int = 0) -> int:
    """The seed (31 bits) of the case `identity` in a run with `--seed`.

    All random numbers of the case come from it.
    """
    return int.from_bytes(hashlib.sha256(f"{seed}:{identity}".encode()).digest()[:4], "big") >> 1
