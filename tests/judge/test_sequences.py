"""Scenarios of sequences: each case has the preemption, hit, eviction or abort that it is named
for.
"""

from __future__ import annotations

import pytest

from harness.core.cases import Job
from harness.core.engine_params import EngineParams
from harness.core.records import Verdict
from harness.engine.schedule import scheduler
from harness.judge.run_case import run_case
from harness.scenario.expand import expand
from harness.scenario.load import load_scenarios, shipped_directory
from harness.scenario.override import KernelOverride
from harness.scenario.variant import changed, shown

from .planted_sequences import SCHEDULER, other_text  # type: ignore[import-not-found]

SCENARIOS = [
    s for s in load_scenarios(shipped_directory()) if "sequences" in s.tags and s.fuzz is None
]
CASES = {case.id: case for scenario in SCENARIOS for case in expand(scenario)}


def run(name, **changes):
    case = CASES[name]
    return run_case(
        Job(
            key="job",
            case=changed(case, ",".join(f"{k}={v}" for k, v in changes.items()) or "strict=false"),
        )
    )


@pytest.mark.first(20)
@pytest.mark.parametrize("name", CASES)
def test_each_case_passes_and_has_what_it_is_named_for(name):
    result = run(name, patterns="[nan]")
    assert result.verdict is Verdict.PASS
    for event in CASES[name].params_as(EngineParams).happens:
        assert f"{event} " in result.reason


def test_every_event_happens_in_a_scenario():
    shipped = [
        case for s in load_scenarios(shipped_directory()) if s.fuzz is None for case in expand(s)
    ]
    wanted = {event for case in shipped for event in getattr(case.params, "happens", ())}
    every = set(EngineParams.model_fields["happens"].annotation.__args__[0].__args__)
    assert wanted == every


def test_a_case_without_its_event_is_skipped_and_no_pass():
    result = run("preempted-phases[phase=decode]", num_blocks=20)
    assert (result.verdict, result.reason) == (Verdict.SKIP, "never happened: preempt.decode")


def test_an_engine_without_the_event_of_a_written_case_fails(monkeypatch):
    # No prompt finds a page. The answers are right, and only slower.
    monkeypatch.setattr(scheduler, "pages_with_drafts", lambda shared: [])
    (scenario,) = load_scenarios(shipped_directory(), only="drafter-prefixes")
    case = expand(scenario)[0]
    result = run_case(Job(key="job", case=case))
    (finding,) = result.findings
    assert (result.verdict, finding.oracle, finding.cause) == (
        Verdict.FAIL,
        "policy",
        "never_happened",
    )
    assert finding.message.startswith("never happened: hit")
    # Without poison too, so no memory is blamed.
    assert run_case(Job(key="trial", case=case, sites=())).verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"arrivals": (1,) * 5}, "arrivals and chains have at most one entry for each request"),
        ({"aborts": ((4, 1),)}, "aborts names a request that is not there"),
        ({"chains": ("a-b",)}, "should match pattern"),
    ],
)
def test_a_sequence_that_cannot_be_is_refused(wrong, sentence):
    with pytest.raises(ValueError, match=sentence):
        EngineParams(**wrong)


@pytest.mark.parametrize("name", CASES)
def test_an_id_can_write_each_sequence(name):
    written = {
        key: getattr(CASES[name].params, key) for key in ("chains", "arrivals", "aborts", "happens")
    }
    again = changed(
        CASES[name], ",".join(f"{key}={shown(value)}" for key, value in written.items())
    )
    assert again.params == CASES[name].params


def test_a_step_that_decides_otherwise_than_declared_is_a_finding_of_policy(approved):
    case = CASES["preempted-phases[phase=itself]"]
    assert run_case(Job(key="job", case=case)).verdict is Verdict.PASS
    with other_text(
        SCHEDULER + "Scheduler._release", "list(sequence.blocks)", "sequence.blocks[::-1]"
    ):
        (finding,) = run_case(Job(key="job", case=case)).findings
    assert (finding.oracle, finding.tensor) == ("policy", "what a step decides")
    approved(finding.message)


def test_a_variant_of_a_case_declares_no_steps():
    case = CASES["preempted-phases[phase=page_end]"]
    other = changed(case, "num_blocks=20")
    assert case.params_as(EngineParams).steps and not other.params_as(EngineParams).steps
    assert other.id == "preempted-phases[phase=page_end]@num_blocks=20"
    assert changed(case, "patterns=[nan]").params == case.params


@pytest.mark.parametrize(
    "name", ["short-prompts[drafts=histories]", "prefix-chains[sequence=collision_in_prompt]"]
)
def test_with_another_kernel_or_seed_the_tokens_are_others_and_no_steps_are_declared(name):
    """Drafts that are taken and hashes that collide depend on the tokens, and these on the seed of
    the case.
    """
    written = CASES[name]
    assert written.params_as(EngineParams).steps and written == CASES[name]
    scenario = next(one for one in load_scenarios() if one.name == written.scenario)
    override = KernelOverride.named("mla_decode/tiled-prefetch")
    others = [*expand(scenario, override=override), *expand(scenario, seed=3)]
    assert others and not any(case.params_as(EngineParams).steps for case in others)
    (seeded,) = (case for case in others if case.id == name)
    assert (
        seeded.seed != written.seed
        and run_case(Job(key="job", case=seeded)).verdict is Verdict.PASS
    )
