"""Three crashes alike in a row hold back the rest of their group; a kernel that must declare shapes crashes once."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.core.cases import AskFirstNan, Case, Job, KnownFailure
from harness.core.records import CaseResult, Finding, Verdict
from harness.run.crash_groups import CrashGroups
from harness.run.runner import WorkerPool

from .test_runner import stub_pool  # type: ignore[import-not-found]

UNDECLARED = "undeclared_shapes"


def job(
    name: str,
    does: str = "crash",
    *,
    scenario: str = "s",
    kernel: str = "mine",
    rank: int = 512,
    cause: str = "",
    reason: str = "",
) -> Job:
    given = {"cause": cause, "reason": reason, "kernel": f"mla_decode/{kernel}"}
    tags = (f"does={does}", *(f"{name}={value}" for name, value in given.items() if value))
    params = {"kernel": kernel, "kv_lora_rank": rank, "qk_rope_head_dim": 64 if rank == 512 else 16}
    case = Case(id=name, scenario=scenario, system="kernel", op="mla_decode", tags=tags, params=params)
    return Job(key=name, case=case)


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with stub_pool() as shared:
        yield shared


def verdicts(pool: Any, jobs: list[Job], **options: Any) -> str:
    """The first letter of each verdict, in the order of the jobs."""
    found = {result.key: result for result in pool.run(jobs, None, CrashGroups(jobs, **options))}
    return "".join(found[one.key].verdict.value[0] for one in jobs)


def test_after_three_crashes_alike_the_rest_of_the_group_is_not_run(pool: WorkerPool) -> None:
    # The words differ, the cause does not.
    jobs = [job(f"n{n}", reason=f"illegal address 0x{n}ab of block {n} in n{n}") for n in range(6)]
    others = [job("other", kernel="theirs"), job("elsewhere", scenario="t")]
    results = {result.key: result for result in pool.run([*jobs, *others], None, CrashGroups([*jobs, *others]))}
    assert [results[one.key].verdict.value for one in jobs] == ["crash"] * 3 + ["skip"] * 3
    assert all(results[one.key].verdict is Verdict.CRASH for one in others)
    why = "not run: 3 cases before it crashed in mla_decode/mine with the same reason (n0); --exhaustive runs it"
    assert {results[key].reason for key in ("n3", "n4", "n5")} == {why}
    assert results["n3"].was_left_out and not results["n0"].was_left_out


def test_without_the_rule_every_case_is_run(pool: WorkerPool) -> None:
    jobs = [job(f"n{n}") for n in range(5)]
    assert all(result.verdict is Verdict.CRASH for result in pool.run(jobs))


@pytest.mark.parametrize(
    ("does", "found"),
    [
        (("crash", "crash", "pass", "crash", "crash", "fail", "crash", "crash", "crash", "pass"), "ccpccfcccs"),
        (("crash", "crash", "error", "crash", "crash"), "ccecc"),
        # A case that cannot run here says nothing about the kernel.
        (("crash", "skip", "crash", "skip", "crash", "pass"), "cscscs"),
    ],
)
def test_another_outcome_in_between_resets_the_count(pool: WorkerPool, does: tuple[str, ...], found: str) -> None:
    assert verdicts(pool, [job(f"n{n}", word) for n, word in enumerate(does)]) == found


def test_crashes_for_other_reasons_are_counted_apart(pool: WorkerPool) -> None:
    causes = ("a", "a", "b", "b", "a", "a", "a", "a")
    assert verdicts(pool, [job(f"n{n}", cause=one) for n, one in enumerate(causes)]) == "ccccccc" + "s"


def test_a_worker_that_dies_counts_as_well(pool: WorkerPool) -> None:
    assert verdicts(pool, [job(f"n{n}", "exit") for n in range(5)]) == "cccss"


@pytest.mark.nightly
def test_several_workers_run_only_what_they_had_begun() -> None:
    jobs = [job(f"n{n}") for n in range(12)]
    with stub_pool(2) as pool:
        found = verdicts(pool, jobs)
    assert found.count("c") in (3, 4) and found.count("s") == 12 - found.count("c")


def test_trials_faults_and_known_failures_are_never_held_back(pool: WorkerPool) -> None:
    case = job("n").case
    known = KnownFailure(issue="o/r#1", engine="vllm", versions=">=0.1", expect=("crash",))
    others = [
        Job(key="sites", case=case, sites=()),
        Job(key="fault", case=case, fault="merge.ignore-context-count"),
        Job(key="ask", case=case, ask=AskFirstNan()),
        Job(key="known", case=case.model_copy(update={"known": (known,)})),
        Job(key="no kernel", case=Case(id="e", scenario="s", system="vllm-host", params={"part": "new-blocks"})),
    ]
    jobs = [job(f"n{n}") for n in range(4)]
    groups = CrashGroups([*jobs, *others])
    for one in jobs[:3]:
        groups.note(CaseResult.of(one, Verdict.CRASH, reason="r"))
    waiting = deque([jobs[3], *others])
    assert [result.key for result in groups.take_from(waiting)] == ["n3"]
    assert list(waiting) == others
    only_trials = CrashGroups(others)
    for one in others:
        only_trials.note(CaseResult.of(one, Verdict.CRASH, reason="r"))
    assert list(only_trials.take_from(deque(others))) == []


def test_a_continued_run_counts_the_stored_results(pool: WorkerPool) -> None:
    jobs = [job(f"n{n}") for n in range(4)]
    finding = Finding(oracle="crash", cause="raised", kernel="mla_decode/mine", message="another address")
    stored = [CaseResult.of(one, Verdict.CRASH, findings=(finding,)) for one in jobs[:2]]
    found = list(pool.run(jobs[2:], None, CrashGroups(jobs, stored)))
    assert [result.verdict.value for result in found] == ["crash", "skip"]
    stored.append(found[0])
    assert [result.verdict for result in pool.run(jobs[3:], None, CrashGroups(jobs, stored))] == [Verdict.SKIP]


def test_a_kernel_that_must_declare_shapes_crashes_once_in_all_scenarios(pool: WorkerPool) -> None:
    jobs = [
        job("first", scenario="s", rank=32, cause=UNDECLARED),
        job("again", scenario="s", rank=32),
        job("elsewhere", scenario="t", rank=64),
        job("full size", "pass", scenario="t"),
        job("another kernel", "pass", scenario="t", kernel="theirs", rank=32),
    ]
    results = {result.key: result for result in pool.run(jobs, None, CrashGroups(jobs))}
    assert [results[one.key].verdict.value for one in jobs] == ["crash", "skip", "skip", "pass", "pass"]
    why = "not run: mla_decode/mine raises at such sizes (first); declare shapes="
    assert results["again"].reason == results["elsewhere"].reason == why


def test_sizes_are_held_back_in_the_engine_too(tmp_path: Path) -> None:
    engine = Case(
        id="engine", scenario="e", system="engine", params={"decode_kernel": "mine", "kv_lora_rank": 32,
                                                            "qk_rope_head_dim": 16},
    )  # fmt: skip
    first, later = job("first", rank=32), Job(key="engine", case=engine)
    groups = CrashGroups([first, later])
    finding = Finding(oracle="crash", cause=UNDECLARED, kernel="mla_decode/mine")
    groups.note(CaseResult.of(first, Verdict.CRASH, findings=(finding,)))
    assert [result.key for result in groups.take_from(deque([later]))] == ["engine"]
