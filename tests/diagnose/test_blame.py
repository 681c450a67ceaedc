from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from harness.core.cases import Case, Job, PoisonPlan
from harness.core.catalog import ORACLES
from harness.core.cause_codes import Code
from harness.core.findings import Finding
from harness.core.oracles import LAST
from harness.core.records import Blame, CaseResult, Verdict
from harness.diagnose.blame import (
    MAY_BE_MEMORY,
    NO_MEMORY,
    NOT_FILLED,
    conclude,
    fails_alike,
    plan_trials,
)
from harness.diagnose.reduce import primary
from harness.judge.run_case import run_case
from harness.scenario.expand import expand
from harness.scenario.load import load_scenarios

SITES = ("output", "kv.tail", "router.ids", "workspace")
Behaviour = Callable[[frozenset[str]], tuple[Finding, ...]]


def job(sites: tuple[str, ...] = SITES) -> Job:
    return Job(
        key="k", case=Case(id="c", scenario="s", system="engine", poison=PoisonPlan(sites=sites))
    )


def result_of(of: Job, behave: Behaviour) -> CaseResult:
    sites = of.case.poison.sites if of.sites is None else of.sites
    findings = behave(frozenset(sites))
    verdict = Verdict.PASS
    if findings:
        verdict = Verdict.CRASH if findings[0].oracle == "crash" else Verdict.FAIL
    return CaseResult(
        key=of.key, id="c", scenario="s", sites=of.sites, verdict=verdict, findings=findings
    )


def blame(
    behave: Behaviour, sites: tuple[str, ...] = SITES, fault: str | None = None
) -> tuple[Blame, list[list[tuple[str, ...] | None]]]:
    """The conclusion, and the sets of sites tried in each round."""
    first = job(sites).model_copy(update={"fault": fault})
    result = result_of(first, behave)
    done: list[CaseResult] = []
    rounds = []
    while trials := plan_trials(first, result, done):
        assert len(rounds) < 5
        rounds.append([trial.sites for trial in trials])
        done.extend(result_of(trial, behave) for trial in trials)
    return conclude(first, result, done), rounds


def finite(site: str | None = None) -> tuple[Finding, ...]:
    return (Finding(oracle="finite", site=site, message="NaN"),)


def test_the_single_site_that_fails_alone_is_blamed():
    found, rounds = blame(lambda sites: finite() if "router.ids" in sites else ())
    assert found.sites == ("router.ids",)
    assert rounds == [[()], [(site,) for site in SITES], [SITES, ("router.ids",)]]
    assert found.trials == {
        "nothing": "pass",
        "output": "pass",
        "kv.tail": "pass",
        "router.ids": "fail",
        "workspace": "pass",
        "the same again": "fail",
        "router.ids again": "fail",
    }
    assert found.cause == Code.ALONE and "only router.ids" in found.how


@pytest.mark.parametrize("sites", [("output",), ("output", "kv.tail"), SITES])
def test_a_case_that_passes_when_it_is_repeated_blames_no_memory(sites):
    calls = iter([finite()])
    found, rounds = blame(lambda poisoned: next(calls, ()), sites)
    assert (found.sites, found.cause) == ((), Code.NOT_REPEATED)
    assert rounds[-1] == [sites] and found.trials["the same again"] == "pass"


@pytest.mark.parametrize(
    "failing", [{1, 3}, {1, 7, 8, 9, 11, 12}], ids=["a site alone", "all sites but one"]
)
def test_a_trial_that_ends_otherwise_when_it_is_repeated_blames_no_memory(failing, approved):
    """A counter that is kept from call to call fails some calls, whatever is poisoned."""
    calls = itertools.count(1)
    found, _ = blame(lambda poisoned: finite() if next(calls) in failing else ())
    assert (found.sites, found.cause) == ((), Code.NOT_REPEATED)
    approved(found.how)


def test_a_site_that_the_case_does_not_have_is_not_blamed_where_each_site_fails_alone():
    """So a kernel ends whose error comes and goes by itself, as by the choice of its autotuner."""
    first = job()
    result = result_of(first, lambda sites: finite())
    trials = [result_of(trial, lambda sites: ()) for trial in plan_trials(first, result)]
    while found := plan_trials(first, result, trials):
        trials += [result_of(trial, lambda sites: finite()) for trial in found]
    assert conclude(first, result, trials).sites == SITES
    filled = result.model_copy(update={"filled": {"output": 64, "kv.tail": 32}})
    blamed = conclude(first, filled, trials)
    assert (blamed.sites, blamed.cause) == ((), Code.NOT_REPEATED)
    assert "also router.ids, which this case does not have" in blamed.how
    everywhere = filled.model_copy(update={"filled": dict.fromkeys(SITES, 1)})
    assert conclude(first, everywhere, trials).sites == SITES


def test_two_sites_that_each_fail_alone_are_both_blamed():
    found, _ = blame(lambda sites: finite() if sites & {"output", "kv.tail"} else ())
    assert (found.sites, found.cause) == (("output", "kv.tail"), Code.ALONE)


def test_two_sites_that_fail_only_together_are_found_by_leaving_one_out():
    found, rounds = blame(lambda sites: finite() if {"output", "workspace"} <= sites else ())
    assert (found.sites, found.cause) == (("output", "workspace"), Code.NECESSARY)
    assert rounds[3:] == [[SITES, SITES[1:], SITES[:-1]]]
    assert found.trials["all but output"] == "pass"
    assert found.trials["all but kv.tail"] == "fail"


def test_a_case_that_fails_with_nothing_poisoned_is_blamed_by_what_its_findings_name():
    found, rounds = blame(lambda sites: finite("graph.pad_rows"))
    assert found.sites == ("graph.pad_rows",)
    assert rounds == [[()]]
    assert found.cause == Code.WITHOUT_POISON


def test_a_case_that_fails_with_nothing_poisoned_and_names_nothing_blames_nothing():
    found, _ = blame(lambda sites: finite(None))
    assert (found.sites, found.cause) == ((), Code.WITHOUT_POISON)


def without_poison(
    *findings: Finding,
    trial: tuple[Finding, ...] = (),
    looked_at: int = 0,
    sites: tuple[str, ...] = SITES,
) -> Blame:
    """The conclusion for a case that fails without poison as well, by the findings of `trial` or
    the same.
    """
    first, verdict = job(sites), Verdict.CRASH if findings[0].oracle == "crash" else Verdict.FAIL
    result = CaseResult(
        key="k",
        id="c",
        scenario="s",
        verdict=verdict,
        findings=findings,
        looked_at={"non_interference": looked_at},
    )
    bare = result.model_copy(
        update={"key": "k~blame:nothing", "sites": (), "findings": trial or findings}
    )
    return conclude(first, result, [bare] if sites else [])


OFF = Finding(oracle="reference", message="off")


def test_equal_bits_over_two_poisons_prove_that_no_uninitialised_memory_is_involved(approved):
    assert without_poison(OFF, looked_at=7).how == NO_MEMORY
    approved(NO_MEMORY)


def test_without_two_poisons_or_with_other_bits_poison_tells_nothing_of_memory():
    """A row that is never written holds a wrong number over zeros too."""
    assert without_poison(OFF).how == MAY_BE_MEMORY
    assert without_poison(OFF, Finding(oracle="non_interference"), looked_at=7).how == MAY_BE_MEMORY


def test_the_same_error_over_two_contents_of_memory_is_no_matter_of_memory():
    raised = Finding(
        oracle="crash",
        cause=Code.RAISED,
        error="ValueError",
        kernel="mla_decode/mine",
        message="at 16 heads",
    )
    assert without_poison(raised).how == NO_MEMORY
    assert (
        without_poison(raised, trial=(raised.model_copy(update={"error": "IndexError"}),)).how
        == MAY_BE_MEMORY
    )
    assert without_poison(Finding(oracle="crash", cause=Code.DIED)).how == MAY_BE_MEMORY


def test_a_case_that_fills_no_memory_does_not_tell_whether_stale_memory_is_involved():
    """Accuracy is measured over what production would find: stale pages are memory, and no poison
    shows them.
    """
    found = without_poison(
        Finding(oracle="accuracy", cause="drop", message="lost 13 of 16"), sites=()
    )
    assert (found.sites, found.cause, found.how) == ((), Code.NOT_FILLED, NOT_FILLED)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("select-topk[kernel=torch,values=equal,rows=edges]", "sparse.ties-by-arrival"),
        ("map-indices[kernel=torch,missing=last,rows=decodes]", "sparse.minus-one-looked-up"),
    ],
)
def test_a_wrong_choice_of_an_index_kernel_is_not_blamed_on_the_buffer_it_writes(
    name: str, fault: str
):
    (scenario,) = (one for one in load_scenarios() if one.name == name.partition("[")[0])
    (case,) = (one for one in expand(scenario) if one.id == name)
    first = Job(key=name, case=case, fault=fault)
    result, done = run_case(first), []
    while trials := plan_trials(first, result, done):
        done += [run_case(trial) for trial in trials]
    found = conclude(first, result, done)
    assert (found.sites, found.cause) == ((), Code.WITHOUT_POISON)
    assert all(finding.site is None for finding in result.findings)


def test_a_trial_of_an_index_of_the_poison_keeps_the_run_over_zeros():
    """Without it a -1 that the kernel writes itself would be taken for the poison's."""
    case = Case(
        id="c",
        scenario="s",
        system="engine",
        oracles=("sentinel",),
        poison=PoisonPlan(patterns=("nan", "zeros"), sites=SITES),
    )
    for cause, patterns in ((Code.POISON_INDEX, ("nan", "zeros")), (Code.SENTINEL, ("nan",))):
        findings = (Finding(oracle="sentinel", cause=cause),)
        result = CaseResult(key="k", id="c", scenario="s", verdict=Verdict.FAIL, findings=findings)
        (trial,) = plan_trials(Job(key="k", case=case), result)
        assert trial.case.poison.patterns == patterns


def test_another_oracle_firing_with_nothing_poisoned_is_another_reason():
    wrong_numbers = Finding(oracle="reference", message="off")

    def behave(sites: frozenset[str]) -> tuple[Finding, ...]:
        return (*finite(), wrong_numbers) if "kv.tail" in sites else (wrong_numbers,)

    assert blame(behave)[0].sites == ("kv.tail",)


def test_a_crash_is_a_reason_like_any_other():
    found, _ = blame(
        lambda sites: (Finding(oracle="crash", site="kv.tail"),) if "router.ids" in sites else ()
    )
    assert found.sites == ("router.ids",)
    assert found.trials["router.ids"] == "crash"


def test_one_poisoned_site_is_to_blame_if_it_fails_again():
    found, rounds = blame(lambda sites: finite() if sites else (), sites=("kv.tail",))
    assert (found.sites, found.cause) == (("kv.tail",), Code.ONLY_SITE)
    assert rounds == [[()], [("kv.tail",)]]


def test_two_sites_that_fail_only_together_are_both_necessary_if_they_fail_again():
    found, rounds = blame(
        lambda sites: finite() if len(sites) == 2 else (), sites=("output", "lse")
    )
    assert found.sites == ("output", "lse")
    assert rounds[2:] == [[("output", "lse")]]


def test_when_any_two_of_three_fail_none_is_necessary_and_all_are_named():
    found, _ = blame(
        lambda sites: finite() if len(sites) >= 2 else (), sites=("output", "lse", "workspace")
    )
    assert found.sites == ("output", "lse", "workspace")
    assert found.cause == Code.TOGETHER


def test_a_case_without_poisoned_sites_has_been_its_own_trial():
    found, rounds = blame(lambda sites: finite("kv.null"), sites=())
    assert (found.sites, found.cause, rounds) == (("kv.null",), Code.WITHOUT_POISON, [])


@pytest.mark.parametrize("verdict", [Verdict.PASS, Verdict.SKIP, Verdict.ERROR])
def test_nothing_is_tried_for_a_case_that_did_not_fail(verdict):
    result = CaseResult(key="k", id="c", scenario="s", verdict=verdict)
    assert plan_trials(job(), result) == []


def test_trials_keep_the_fault_the_case_and_get_keys_of_their_own():
    first = job().model_copy(update={"fault": "f"})
    trials = plan_trials(first, result_of(first, lambda sites: finite()))
    assert [(trial.key, trial.fault, trial.case.id) for trial in trials] == [
        ("k~blame:nothing", "f", "c")
    ]


def test_trials_of_an_injected_fault_are_not_repeated():
    found, rounds = blame(lambda sites: finite() if "output" in sites else (), fault="f")
    assert (found.sites, len(rounds)) == (("output",), 2)


def trials_of(oracle: str, *patterns: str) -> list[Job]:
    """The trials of both first rounds, for a case judged by two oracles under `patterns`."""
    case = Case(
        id="c",
        scenario="s",
        system="engine",
        oracles=("finite", "non_interference"),
        poison=PoisonPlan(patterns=patterns, sites=SITES),
    )
    first = Job(key="k", case=case)
    result = CaseResult(
        key="k", id="c", scenario="s", verdict=Verdict.FAIL, findings=(Finding(oracle=oracle),)
    )
    clean = CaseResult(key="k", id="c", scenario="s", verdict=Verdict.PASS, sites=())
    return [*plan_trials(first, result), *plan_trials(first, result, [clean])]


def test_a_trial_asks_the_oracle_in_question_only_and_runs_no_pattern_in_vain():
    nothing, alone, *_ = trials_of("finite", "nan", "zeros", "max")
    assert nothing.case.oracles == alone.case.oracles == ("finite",)
    assert nothing.case.poison.patterns == ("nan",)
    assert alone.case.poison.patterns == ("nan", "max")


def test_a_trial_of_non_interference_keeps_all_patterns():
    nothing, alone, *_ = trials_of("non_interference", "nan", "zeros")
    assert nothing.case.poison.patterns == alone.case.poison.patterns == ("nan", "zeros")


def test_a_case_poisoned_with_zeros_alone_keeps_them():
    assert all(trial.case.poison.patterns == ("zeros",) for trial in trials_of("finite", "zeros"))


def test_the_primary_finding_is_the_one_that_tells_the_mechanism():
    names = ["non_interference", "reference", "finite", "sentinel", "replay", "address", "crash"]
    findings = [Finding(oracle=name) for name in names]
    for left in range(7, 0, -1):
        assert primary(findings[:left]).oracle == names[left - 1]


def test_a_result_without_findings_has_no_primary_one():
    with pytest.raises(ValueError, match="has no cause"):
        primary([])


def test_every_oracle_has_a_rank_of_its_own():
    ranks = [oracle.rank for oracle in ORACLES]
    assert len(set(ranks)) == len(ranks) and max(ranks) < LAST


def test_a_trial_that_ends_in_an_error_does_not_count_as_failing_alike():
    first = job()
    result = result_of(first, lambda sites: finite())
    trial = result.model_copy(update={"verdict": Verdict.ERROR, "sites": ()})
    assert not fails_alike(result, trial)
