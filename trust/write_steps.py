"""Print what each step of cases decides, as `steps` of a scenario declares it.

Read it before you declare it.

python -m trust.write_steps 'preempted-phases[phase=decode]' ...
"""

from __future__ import annotations

import sys

from torch_poison.patterns import Poison

from harness.core.cases import Job
from harness.core.sites import SITES
from harness.judge.probes.notes import Notes
from harness.judge.target import target_of
from harness.judge.targets.engine import EngineTarget
from harness.scenario.load import load_scenarios
from harness.scenario.selection import select


def steps_of(selector: str, seed: int = 0) -> dict[str, list[str]]:
    """The id of each selected case of the reference engine -> what its steps decide."""
    found = {}
    for case in select(load_scenarios(None), (selector,), tags=(), seed=seed):
        target, poison = (
            target_of(Job(key=case.id, case=case)),
            Poison("nan", frozenset(site.name for site in SITES)),
        )
        assert isinstance(target, EngineTarget)
        notes = Notes(target._params, poison, padding_bound=target._padding_bound)
        target._serve(target._legitimate(poison), notes)
        found[case.id] = notes.answers.decided
    return found


if __name__ == "__main__":
    for selector in sys.argv[1:]:
        for name, steps in steps_of(selector).items():
            print(name, *(f'  - "{step}"' for step in steps), sep="\n")
