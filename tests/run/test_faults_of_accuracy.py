"""A scenario named as a whole shows its accuracy with its fault as well; nothing else does."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.cases import Case, Job
from harness.core.records import Blame, CaseResult, Finding, Verdict
from harness.diagnose.perform import judge_fault
from harness.run.environment import Environment
from harness.run.planning import Planner, Wanted
from harness.scenario.load import load_scenarios, shipped_directory
from harness.scenario.schema import FaultUse
from harness.scenario.selection import select
from harness.store.run_folder import Control, RunStore

NAME = "kv-cache-full"


class NoGpu:
    """A pool on a machine without a GPU; no job reaches it."""

    def start(self) -> Environment:
        return Environment(torch="2.13.0", cuda=None, gpus=())


def controls(*selectors: str, **options: object) -> list[str]:
    planner = Planner(Wanted(selectors=selectors, **options), NoGpu())  # type: ignore[arg-type]
    return [job.key for _, job in planner.faults_of_accuracy(planner.jobs())]


def _job(case: Case, fault: str | None) -> Job:
    return Job(key=f"{case.id}!{fault}" if fault else case.id, case=case, fault=fault)


def test_a_named_scenario_brings_its_accuracy_with_the_fault() -> None:
    expected = [f"{NAME}[accuracy=gsm_symbolic]!kv.skip-zero-new-blocks"]
    assert controls(NAME) == expected
    assert controls("43961") == expected


@pytest.mark.parametrize(
    ("selectors", "options"),
    [
        ((), {}),
        ((f"{NAME}[accuracy=gsm_symbolic]",), {}),
        ((NAME,), {"fault": "kv.skip-zero-new-blocks"}),
        ((NAME,), {"tags": ("engine",)}),
    ],
)
def test_a_run_of_everything_of_one_case_or_under_a_fault_does_not(
    selectors: tuple[str, ...], options: dict[str, object]
) -> None:
    assert controls(*selectors, **options) == []


def test_a_tag_of_the_user_makes_no_case_a_measurement_of_accuracy(tmp_path: Path) -> None:
    text = (shipped_directory() / f"{NAME}.yaml").read_text(encoding="utf-8")
    assert "\ntags: [" in text
    (tmp_path / f"{NAME}.yaml").write_text(text.replace("\ntags: [", "\ntags: [accuracy, "), encoding="utf-8")
    expected = [f"{NAME}[accuracy=gsm_symbolic]!kv.skip-zero-new-blocks"]
    assert controls(NAME, scenarios=tmp_path) == expected


def test_a_control_is_done_once_across_resumed_stretches_and_apart_from_the_cases(tmp_path: Path) -> None:
    (case,) = select(load_scenarios(), [f"{NAME}[accuracy=gsm_symbolic]"])
    use = FaultUse(name="kv.skip-zero-new-blocks", caught_by="accuracy")
    job = _job(case, use.name)
    store = RunStore.create(
        tmp_path, [_job(case, None)], command="mla-harness run", controls=[Control(use=use, job=job)]
    )
    assert [control.job.key for control in RunStore.open(store.path).unfinished_controls()] == [job.key]
    result = CaseResult(
        key=job.key, id=case.id, scenario=case.scenario, fault=use.name, verdict=Verdict.FAIL,
        findings=(Finding(oracle="accuracy", message="epoch 3 lost 13"),),
    )  # fmt: skip
    store.add_fault(judge_fault(use, result, Blame(), 0.0))
    assert RunStore.open(store.path).unfinished_controls() == []
    assert [fault.caught for fault in store.faults()] == [True]
    assert [job.key for job in store.unfinished()] == [case.id]


def test_jobs_of_accuracy_keep_their_answers_in_the_run_directory_and_others_have_none(tmp_path: Path) -> None:
    (measured,) = select(load_scenarios(), [f"{NAME}[accuracy=gsm_symbolic]"])
    plain = select(load_scenarios(), [NAME])[0]
    store = RunStore.create(tmp_path, [], command="mla-harness run")
    clean, faulty = store.placed(_job(measured, None)), store.placed(_job(measured, "kv.skip-zero-new-blocks"))
    assert clean.directory and faulty.directory and clean.directory != faulty.directory
    assert Path(clean.directory).is_relative_to(store.path.resolve())
    assert store.placed(_job(plain, None)).directory is None
