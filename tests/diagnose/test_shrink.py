from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from harness.core.cases import Case, Job, PoisonPlan
from harness.core.errors import InputError
from harness.core.findings import Finding
from harness.core.records import Blame, CaseResult, Verdict
from harness.diagnose import reduce
from harness.diagnose.shrink import job_of, shrink
from harness.judge.run_case import run_case
from harness.scenario.expand import fault_cases
from harness.scenario.load import load_scenarios
from harness.scenario.selection import select

Behaviour = Callable[[Job], tuple[Finding, ...]]
NAN = Finding(
    oracle="finite", site="kv.tail", tensor="out", message="NaN in live rows of out: 7 elements"
)


@dataclass
class StubPool:
    """Jobs are answered by a function instead of a worker; every job that was asked for is kept."""

    behave: Behaviour
    num_workers: int = 2
    seen: list[Job] = field(default_factory=list)

    def run_in_order(self, jobs: Sequence[Job]) -> list[CaseResult]:
        self.seen += jobs
        return [self._result(job) for job in jobs]

    def run(self, jobs: Sequence[Job]) -> list[CaseResult]:
        return self.run_in_order(jobs)

    def _result(self, job: Job) -> CaseResult:
        findings = self.behave(job)
        verdict = Verdict.FAIL if findings else Verdict.PASS
        return CaseResult(
            key=job.key,
            id=job.case.id,
            scenario="s",
            verdict=verdict,
            findings=findings,
            sites=job.sites,
        )


def decode_job(fault: str | None = None, **params: object) -> Job:
    poison = PoisonPlan(patterns=("nan", "zeros"), sites=("output", "kv.tail", "kv.free"))
    case = Case(
        id="s",
        scenario="s",
        system="kernel",
        op="mla_decode",
        params=params,
        poison=poison,
        oracles=("finite",),
    )
    return Job(key="k", case=case, fault=fault)


def poisoned(job: Job, site: str = "kv.tail") -> bool:
    return site in (job.case.poison.sites if job.sites is None else job.sites)


def fails_with_a_long_request(job: Job) -> tuple[Finding, ...]:
    return (NAN,) if poisoned(job) and max(job.case.params.seq_lens) >= 65 else ()


def test_only_what_the_failure_needs_is_left():
    found = shrink(StubPool(fails_with_a_long_request), decode_job())
    assert found.case.params.seq_lens == (65,)
    assert found.case.params.num_heads == 1
    assert found.case.poison.sites == ("kv.tail",)
    assert found.case.poison.patterns == ("nan",)
    assert found.is_smallest
    assert (found.oracle, found.sites) == ("finite", ("kv.tail",))


def test_the_way_there_is_shown_from_the_first_value_to_the_last():
    found = shrink(StubPool(fails_with_a_long_request), decode_job())
    steps = [step for step in found.steps if step.what == "seq_lens"]
    assert steps[0].before == "[1,63,64,65,130]"
    assert steps[-1].after == "[65]"
    assert all(earlier.after == later.before for earlier, later in itertools.pairwise(steps))


@pytest.mark.parametrize("num_workers", [1, 2, 3, 8])
def test_the_number_of_workers_changes_neither_the_way_nor_its_end(num_workers):
    alone = shrink(StubPool(fails_with_a_long_request, num_workers=1), decode_job())
    found = shrink(StubPool(fails_with_a_long_request, num_workers=num_workers), decode_job())
    assert found.case == alone.case
    assert [(s.what, s.before, s.after) for s in found.steps] == [
        (s.what, s.before, s.after) for s in alone.steps
    ]


def test_a_failure_of_another_site_is_another_reason():
    def behave(job: Job) -> tuple[Finding, ...]:
        other = NAN.model_copy(update={"site": "kv.free"})
        return (NAN if len(job.case.params.seq_lens) > 2 else other,) if poisoned(job) else ()

    assert len(shrink(StubPool(behave), decode_job()).case.params.seq_lens) == 3


def test_a_failure_of_another_oracle_is_another_reason():
    def behave(job: Job) -> tuple[Finding, ...]:
        wrong = Finding(oracle="reference", message="off")
        return (NAN if job.case.params.num_heads > 4 else wrong,) if poisoned(job) else ()

    assert shrink(StubPool(behave), decode_job()).case.params.num_heads == 5


def test_a_smaller_case_that_fails_without_the_fault_too_is_not_taken():
    def behave(job: Job) -> tuple[Finding, ...]:
        is_degenerate = job.case.params.num_heads < 3
        return (NAN,) if poisoned(job) and (job.fault or is_degenerate) else ()

    assert shrink(StubPool(behave), decode_job(fault="f")).case.params.num_heads == 3


def test_a_smaller_case_that_fails_with_nothing_poisoned_is_not_taken():
    def behave(job: Job) -> tuple[Finding, ...]:
        return (NAN,) if poisoned(job) or job.case.params.num_heads < 3 else ()

    assert shrink(StubPool(behave), decode_job()).case.params.num_heads == 3


def test_a_case_that_fails_whatever_is_poisoned_keeps_no_site():
    found = shrink(StubPool(lambda job: (NAN,)), decode_job())
    assert found.case.poison.sites == ()
    assert found.is_smallest


def test_when_the_time_is_up_the_smallest_so_far_is_given_and_said_to_be_that(monkeypatch):
    pool = StubPool(fails_with_a_long_request)
    clock = SimpleNamespace(monotonic=lambda: float(len(pool.seen)))
    monkeypatch.setattr(reduce, "time", clock)
    monkeypatch.setattr("harness.diagnose.shrink.time", clock)
    found = shrink(pool, decode_job(), seconds=12.0)
    assert not found.is_smallest
    assert found.steps
    assert (
        found.case.params.seq_lens == (1, 63, 64, 65, 130) or max(found.case.params.seq_lens) >= 65
    )


def test_no_time_at_all_gives_the_case_itself():
    job = decode_job()
    result = StubPool(fails_with_a_long_request).run_in_order([job])[0]
    blame = Blame(sites=("kv.tail",), trials={"nothing": "pass"})
    found = shrink(StubPool(fails_with_a_long_request), job, result, blame=blame, seconds=0.0)
    assert (found.case, found.steps, found.is_smallest) == (job.case, (), False)


def test_a_case_that_passes_is_refused(approved):
    with approved.raises(InputError):
        shrink(StubPool(lambda job: ()), decode_job())


def test_a_measurement_of_accuracy_is_refused(approved):
    job = Job(
        key="k", case=Case(id="a", scenario="a", system="accuracy", params={"task": "gsm_symbolic"})
    )
    with approved.raises(InputError):
        shrink(StubPool(lambda job: ()), job)


class HerePool:
    """Executes jobs in this process, as a worker would."""

    num_workers = 2

    def run_in_order(self, jobs: Sequence[Job]) -> list[CaseResult]:
        return [run_case(job) for job in jobs]

    def run(self, jobs: Sequence[Job]) -> list[CaseResult]:
        return self.run_in_order(jobs)


def fault_job(scenario_name: str, fault: str) -> Job:
    scenario = next(s for s in load_scenarios(None) if s.name == scenario_name)
    case = next(case for use, case in fault_cases(scenario) if use.name == fault)
    return Job(key=case.id, case=case, fault=fault)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("scenario", "fault", "kept", "lost"),
    [
        (
            "decode-kernel",
            "kv.tail-masked-by-multiply",
            {"sites": ["kv.tail"]},
            {"num_heads": 1, "table_pad": 0},
        ),
        ("merge-kernel", "merge.ignore-context-count", {}, {"num_tokens": 1, "num_heads": 1}),
        (
            "mixed-context",
            "merge.ignore-context-count",
            {"sites": ["context.output"]},
            {"num_heads": 1},
        ),
        pytest.param(
            "cudagraph-padding",
            "router.int64-ids",
            {"sites": ["router.ids"]},
            {"kv": "fp32", "capture_sizes": [1]},
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_a_real_failure_is_shrunk_to_a_case_whose_id_alone_fails_so_again(
    scenario, fault, kept, lost
):
    job = fault_job(scenario, fault)
    found = shrink(HerePool(), job, seconds=math.inf)
    assert found.is_smallest
    assert found.case.values().items() >= lost.items()
    for site in kept.get("sites", ()):
        assert found.case.poison.sites == (site,)
    (again,) = select(load_scenarios(None), [found.case.id])
    assert again == found.case
    assert found.finding in run_case(job_of(job, found)).findings
    assert run_case(job_of(job, found).model_copy(update={"fault": None})).verdict is Verdict.PASS


@pytest.mark.nightly
def test_a_drawn_case_is_shrunk_too():
    known = load_scenarios(None)
    for case in select(known, ["fuzz[op=mla_decode]"], seed=5):
        job = Job(key=case.id, case=case, fault="kv.tail-masked-by-multiply")
        if run_case(job).findings:
            break
    found = shrink(HerePool(), job, seconds=math.inf)
    assert found.case.id.partition("@")[0] == case.id.partition("@")[0]
    assert len(found.case.params.seq_lens) == 1
    assert run_case(job_of(job, found)).findings
