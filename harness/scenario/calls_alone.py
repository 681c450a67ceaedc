"""The cases that judge a kernel by itself: each calls it alone, and no engine."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from harness.core.cases import Case
from harness.scenario.expand import LIMITS
from harness.scenario.load import load_scenarios, shipped_directory
from harness.scenario.override import KernelOverride
from harness.scenario.schema import Scenario
from harness.scenario.selection import is_drawn, select, with_each

KERNEL = "kernel"
"""The system of cases that call one kernel."""
FOLDERS = ("conditions", "kernels")
"""The folders of such scenarios: reading all others takes half of a second."""


@functools.cache
def scenarios_of_calls() -> tuple[Scenario, ...]:
    """The harness's own scenarios of such cases, read once, without the kernel matrix.

    They name no kernel of a user.
    """
    # Their files are checked by the tests of the harness.
    found = [
        load_scenarios(shipped_directory() / folder, whole=lambda name: False) for folder in FOLDERS
    ]
    return tuple(one for one in chain(*found) if one.system == KERNEL)


def calls_alone(kernels: Iterable[str], *, seed: int, selectors: Sequence[str] = ()) -> list[Case]:
    """The calls of registered kernels, in the order in which they tell most in little time.

    `kernels` are names such as `mla_decode/mine`. A kernel of an op that is called with others only
    has none. Raises InputError for a selector that names none of them, and if a kernel's shapes fit
    none.
    """
    judged = [name for name in kernels if _scenarios(KernelOverride.named(name))]
    if not judged:
        return []
    stages: dict[str, int] = {}

    def choose(override: KernelOverride | None) -> list[Case]:
        assert override is not None  # as there are kernels
        cases = select(_scenarios(override), selectors, seed=seed, override=override)
        stages.update(_stages(cases))
        return cases

    return sorted(with_each(judged, choose), key=lambda case: stages[case.id])


def _stages(cases: Sequence[Case]) -> Iterator[tuple[str, int]]:
    """The id of each call of a kernel, and when it is made.

    First the plain ones: what fails there needs no rare call. Then half of the drawn ones, which
    shows nearly all pairs of conditions, as a scenario of conditions has its most telling calls in
    front. Then those at a limit, which take longer, and at last the other half.
    """
    num_left = sum(is_drawn(case.id) for case in cases) // 2
    for case in cases:
        if is_drawn(case.id):
            yield case.id, 1 if num_left > 0 else 3
            num_left -= 1
        else:
            yield case.id, 2 if LIMITS in case.tags else 0


def _scenarios(override: KernelOverride) -> list[Scenario]:
    return [one for one in scenarios_of_calls() if one.op in override.ops]
