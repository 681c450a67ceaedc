"""`mutants --conditions` for the engine: a step is wrong for the requests of some classes, and a
case fails.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest

from harness.core.cases import Job
from harness.core.records import CaseResult
from harness.scenario.expand import expand
from harness.scenario.load import load_scenarios, shipped_directory
from trust.arrays.condition_trials import Trial, attempt, drawn
from trust.arrays.engine_condition_errors import KINDS, kinds_for
from trust.mutants.trials import Outputs, in_forks, run

DECODES = (("layer", "full"), ("phase", "decode"))
STATES = (("layer", "state"), ("mix", "decodes"))
PADDED = (("graph", "padded 1"), ("drafts", "1"))


@functools.cache
def clean() -> dict[str, tuple[CaseResult, Outputs, float]]:
    (scenario,) = (s for s in load_scenarios(shipped_directory()) if s.name == "preempted-phases")
    names = ("phase=decode]", "phase=state]", "phase=verify_graph]")
    jobs = [Job(key=case.id, case=case) for case in expand(scenario) if case.id.endswith(names)]
    return {job.key: (*run(job), 0.0) for job in jobs}


def tried(*trials: Trial) -> Iterator[Any]:
    (scenario,) = (s for s in load_scenarios(shipped_directory()) if s.name == "preempted-phases")
    jobs = [Job(key=case.id, case=case) for case in expand(scenario) if case.id in clean()]
    # The engine of a process stays wrong, so each trial has its own.
    return (
        found for _, found in in_forks(list(trials), lambda trial: attempt(trial, jobs, clean()), 2)
    )


@pytest.mark.nightly
def test_each_kind_is_caught_in_decodes_of_layers_that_have_it() -> None:
    plain = [kind for kind in KINDS if kind in kinds_for(DECODES)]
    trials = [Trial("engine", DECODES, kind, False) for kind in plain]
    trials += [Trial("engine", STATES, kind, False) for kind in ("a stale row", "a skipped write")]
    trials.append(
        Trial("engine", (("drafts", "1"), ("accepted", "none")), "a wrong draft taken", False)
    )
    assert [(one.name, one.status) for one in tried(*trials)] == [
        (trial.name, "killed") for trial in trials
    ]


def test_classes_that_no_step_has_are_not_reached_and_a_replay_can_be_wrong() -> None:
    unmet = Trial("engine", (("layer", "window"), ("phase", "decode")), "a stale row", False)
    replay = Trial("engine", PADDED, "a stale row", False)
    assert [one.status for one in tried(unmet, replay)] == ["not reached", "killed"]


def test_an_error_without_effect_is_equivalent() -> None:
    alone = Trial("engine", (("batch", "1"), ("phase", "decode")), "the neighbour's logits", False)
    assert [one.status for one in tried(alone)] == ["equivalent"]


@pytest.mark.parametrize(
    ("combination", "kind", "has"),
    [
        ((("layer", "state"), ("phase", "decode")), "a position off by one", False),
        ((("layer", "full"), ("phase", "decode")), "a position off by one", True),
        ((("experts", "none"), ("phase", "decode")), "another's experts", False),
        ((("experts", "one rank"), ("phase", "decode")), "another's experts", True),
        ((("accepted", "all"), ("layer", "full")), "a wrong draft taken", False),
        ((("accepted", "some"), ("layer", "full")), "a wrong draft taken", True),
    ],
)
def test_kinds_are_drawn_where_they_can_change_something(
    combination: Any, kind: str, has: bool
) -> None:
    assert (kind in kinds_for(combination)) is has


def test_engine_trials_are_drawn_as_others() -> None:
    trials = drawn(4, 1, ["engine"])
    assert [len(trial.combination) for trial in trials] == [2, 3, 2, 3]
    assert all(
        trial.kind in kinds_for(trial.combination) and not trial.last_head for trial in trials
    )
