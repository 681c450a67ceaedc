"""`run --with-faults`: the faults that scenarios declare, beside their clean cases."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.cases import Case, Job
from harness.core.errors import InputError
from harness.core.findings import Finding
from harness.core.records import Blame, CaseResult, Verdict
from harness.diagnose.run_jobs import judge_fault
from harness.run.environment import Environment
from harness.run.planning import JobPlanner, Wanted
from harness.scenario.load import load_scenarios
from harness.scenario.schema import FaultUse
from harness.scenario.selection import select
from harness.store.run_folder import Control, RunStore

NAME = "kv-cache-full"


class NoGpu:
    """A pool on a machine without a GPU; no job reaches it."""

    def start(self) -> Environment:
        return Environment(torch="2.13.0", cuda=None, gpus=())


def controls(*selectors: str, **options: object) -> list[str]:
    planner = JobPlanner(Wanted(selectors=selectors, **options), NoGpu())  # type: ignore[arg-type]
    return [job.key for _, job in planner.faults_in(planner.jobs())]


def _job(case: Case, fault: str | None) -> Job:
    return Job(key=f"{case.id}!{fault}" if fault else case.id, case=case, fault=fault)


@pytest.mark.nightly
def test_a_scenario_brings_its_faults_into_its_own_cases() -> None:
    found = controls(NAME)
    assert f"{NAME}[accuracy=gsm_symbolic]!kv.skip-zero-new-blocks" in found
    assert set(found) < set(controls("43961")) and {key.partition("[")[0] for key in found} == {
        NAME
    }


def test_a_run_of_one_case_has_the_faults_of_this_case_alone() -> None:
    case = f"{NAME}[accuracy=gsm_symbolic]"
    assert controls(case) == [f"{case}!kv.skip-zero-new-blocks"]


@pytest.mark.parametrize(
    ("selectors", "options", "says"),
    [
        ((NAME,), {"fault": "kv.skip-zero-new-blocks"}, "leave out --fault"),
        (("merge-kernel",), {"kernels": ("triton",)}, "--kernel and --plugin"),
        (("kernel-matrix-merge",), {}, "declares a fault for the selected cases"),
    ],
)
def test_where_there_is_nothing_to_inject_the_option_is_refused(
    selectors: tuple[str, ...], options: dict[str, object], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        controls(*selectors, **options)


def test_a_control_is_done_once_across_resumed_stretches_and_apart_from_the_cases(
    tmp_path: Path,
) -> None:
    (case,) = select(load_scenarios(), [f"{NAME}[accuracy=gsm_symbolic]"])
    use = FaultUse(name="kv.skip-zero-new-blocks", caught_by="accuracy")
    job = _job(case, use.name)
    store = RunStore.create(
        tmp_path,
        [_job(case, None)],
        command="mla-harness run",
        controls=[Control(use=use, job=job)],
    )
    assert [control.job.key for control in RunStore.open(store.path).unfinished_controls()] == [
        job.key
    ]
    result = CaseResult(
        key=job.key,
        id=case.id,
        scenario=case.scenario,
        fault=use.name,
        verdict=Verdict.FAIL,
        findings=(Finding(oracle="accuracy", message="epoch 3 lost 13"),),
    )
    store.add_fault(judge_fault(use, result, Blame(), 0.0))
    assert RunStore.open(store.path).unfinished_controls() == []
    assert [fault.caught for fault in store.faults()] == [True]
    assert [job.key for job in store.unfinished()] == [case.id]


def test_jobs_of_accuracy_keep_their_answers_in_the_run_directory_and_others_have_none(
    tmp_path: Path,
) -> None:
    (measured,) = select(load_scenarios(), [f"{NAME}[accuracy=gsm_symbolic]"])
    plain = select(load_scenarios(), [NAME])[0]
    store = RunStore.create(tmp_path, [], command="mla-harness run")
    clean, faulty = (
        store.placed(_job(measured, None)),
        store.placed(_job(measured, "kv.skip-zero-new-blocks")),
    )
    assert clean.directory and faulty.directory and clean.directory != faulty.directory
    assert Path(clean.directory).is_relative_to(store.path.resolve())
    assert store.placed(_job(plain, None)).directory is None
