"""Scenario -> cases, from the points of its matrix or drawn.

The id of a case names its scenario and its point.

`--kernel NAME` judges one kernel instead of the kernels that scenarios name; on CUDA a kernel's
twin may replace it. The id of a drawn case, such as `fuzz[seed=7,draw=12,v=2]`, alone reproduces
it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import islice

from harness.core.cases import Case, KnownFailure, PoisonPlan
from harness.core.catalog import KERNELS, ORACLES, SITES, SYSTEMS, cuda_twins
from harness.core.engine_params import AccuracyParams
from harness.core.errors import UnknownNameError
from harness.core.kernels import SOUND
from harness.core.params import Params
from harness.core.registry import nearest
from harness.core.systems import SystemSpec
from harness.scenario.matrix import (
    ACCURACY,
    MatrixPoint,
    accuracy_points,
    case_id,
    is_selected,
    points,
)
from harness.scenario.schema import FaultUse, Scenario

GPU = "gpu"
"""The tag of cases that need a GPU."""
NIGHTLY = "nightly"
"""The tag of long cases, which a plain run leaves out."""
NATURAL = "natural"
"""The pattern of :mod:`torch_poison.patterns` that fills nothing.

That module needs torch.
"""
NUM_VARIANTS = 64
"""Sound variants of one seed of a selftest's controls."""
_DRAWN_ID = re.compile(
    r"^(?P<name>[a-z0-9-]+)\[(?:kernel=(?P<kernel>[^,]+),(?:shapes=[^,]+,)?)?seed=(?P<seed>\d{1,18}),draw=(?P<draw>\d{1,9})(?:,v=(?P<version>[2-4]))?\]$",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class KernelOverride:
    """A kernel's short name, and the ops that it implements."""

    short_name: str
    ops: frozenset[str]

    @classmethod
    def named(cls, name: str) -> KernelOverride:
        """The registered kernels called `name`, short or as `op/short`. Raises UnknownNameError."""
        KERNELS.add_family(name)
        specs = [spec for spec in KERNELS if name in (spec.short_name, spec.name)]
        if not specs:
            known = (
                KERNELS.names() if "/" in name else sorted({spec.short_name for spec in KERNELS})
            )
            raise UnknownNameError(f"--kernel: unknown kernel {name!r}; {nearest(name, known)}")
        return cls(specs[0].short_name, frozenset(spec.op for spec in specs))

    def apply(self, system: SystemSpec, op: str | None, point: MatrixPoint) -> MatrixPoint | None:
        """`point` with this kernel for its ops; None if no run of the point calls one of them.

        Its labels begin with `kernel=mine` and have no axis of a replaced kernel. A kernel that
        declares shapes gets a variant with sizes that it accepts: `kernel=mine,shapes=deepseek`.
        """
        replaced = {field: op for field, op in system.kernels_of(op).items() if op in self.ops}
        if replaced.keys() <= point.params.idle_kernels():
            return None
        # Its id is another, so its prompts are other tokens, and its answers too.
        named = point.params.varied().but(**dict.fromkeys(replaced, self.short_name))
        params, name = named, ""
        for spec in (KERNELS.get(f"{op}/{self.short_name}") for op in replaced.values()):
            if spec.shapes is not None:
                params, name = spec.fit(params, point.labels), spec.shapes.name
        changed = {field for field, value in named if getattr(params, field) != value}
        kept = {
            axis: label
            for axis, label in point.labels.items()
            if axis not in {*replaced, *changed, "kernel"}
        }
        return MatrixPoint(
            {"kernel": self.short_name} | ({"shapes": name} if changed else {}) | kept, params
        )


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
    found, measured = points(scenario), list(accuracy_points(scenario))
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
        poison, tags = (
            PoisonPlan(patterns=(NATURAL,)),
            (NIGHTLY,) if "limit" in point.labels else (),
        )
        return _made(
            scenario, point, poison, system=ACCURACY, seed=seed, tags=tags, oracles=(ACCURACY,)
        )
    settings = scenario.poison
    patterns, sites = point.patterns or settings.patterns, point.sites or settings.sites
    known = [
        use.model_dump(exclude={"on"})
        for use in scenario.known
        if is_selected(point.labels, use.on)
    ]
    return _made(
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
        tags=(GPU,) if scenario.device == "cuda" else (),
        known=tuple(map(KnownFailure.model_validate, known)),
    )


def _made(
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
    identity, short_name = case_id(scenario.name, point.labels), point.labels.get("kernel")
    kernels, idle = SYSTEMS.get(system).kernels_of(op), point.params.idle_kernels()
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
    """
    given = params.gives() | {""} | ({"patterns"} if len(patterns) > 1 else set())
    return tuple(name for name in oracles if ORACLES.get(name).needs in given)


def seed_of(identity: str, seed: int = 0) -> int:
    """The seed (31 bits) of the case `identity` in a run with `--seed`.

    All random numbers of the case come from it.
    """
    return int.from_bytes(hashlib.sha256(f"{seed}:{identity}".encode()).digest()[:4], "big") >> 1


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
        for number in range(3 * num_draws)
    )
    return list(islice((case for case in drawn if case is not None), num_draws))


def drawn_case(
    scenario: Scenario, identity: str, override: KernelOverride | None = None
) -> Case | None:
    """The case of a fuzz id with any seed and number; None for any other id."""
    match = _DRAWN_ID.match(identity)
    if override is None and match and match["kernel"] and match["kernel"].startswith(SOUND):
        # No option need name a sound variant: its name is enough to make it.
        override = KernelOverride.named(match["kernel"])
    kernel = override.short_name if override else None
    if match is None or match["name"] != scenario.name or match["kernel"] != kernel:
        return None
    version = int(match["version"] or 1)
    if version > 1 and scenario.fuzz is not None and scenario.fuzz.draws != "all":
        return None
    return _drawn(scenario, int(match["seed"]), int(match["draw"]), override, version)


def _drawn(
    scenario: Scenario,
    seed: int,
    number: int,
    override: KernelOverride | None,
    version: int | None = None,
) -> Case | None:
    """The case of a number, of the newest version of draws unless one is given.

    Sequences have one version.
    """
    # Draws import every condition. A list draws no case and is instant.
    from harness.scenario.draws import VERSION, draw, draw_sequence

    version = VERSION if version is None else version
    kind, name = scenario.fuzz.draws if scenario.fuzz is not None else "all", f"{seed}:{number}"
    drawn = draw(name, version) if kind == "all" else draw_sequence(name, kind == "states")
    labels = {"seed": str(seed), "draw": str(number)} | (
        {"v": str(version)} if kind == "all" and version > 1 else {}
    )
    whole = MatrixPoint(labels, drawn.params)
    point = override.apply(SYSTEMS.get(drawn.system), drawn.op, whole) if override else whole
    return _made(scenario, point, drawn.poison, system=drawn.system, op=drawn.op) if point else None


def on_device(case: Case, device: str) -> Case:
    """`case` with the kernels that run on `device`. Its id and seed stay the same."""
    if device != "cuda" or not case.kind.uses_twins:
        return case
    twins = cuda_twins(case.kernels())
    return case.but(params=case.params.but(**twins)) if twins else case
