"""What the commands share: from options to jobs, jobs carried out and stored, failures blamed, reports written."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.core.cases import Case, Job
from harness.core.catalog import FAULTS, KERNELS
from harness.core.errors import InputError
from harness.core.kernel_spec import KernelSpec
from harness.core.records import Blame, CaseResult, FaultResult, Verdict
from harness.diagnose.blame import conclude, plan_trials
from harness.diagnose.first_nan import recorded_job
from harness.diagnose.first_nan import why_not as why_not_recorded
from harness.diagnose.judge_fault import judge_fault
from harness.report.terminal import LiveProgress
from harness.run.environment import DEVICES
from harness.run.pool import Pool
from harness.scenario.device import on_device
from harness.scenario.expand import GPU, fault_cases
from harness.scenario.kernel_override import KernelOverride
from harness.scenario.load import load_scenarios
from harness.scenario.matrix import ACCURACY
from harness.scenario.schema import Scenario
from harness.scenario.selection import select, selects_scenario, with_each
from harness.store.run_folder import Control, RunStore

FAILED = (Verdict.FAIL, Verdict.CRASH)
MAX_BLAMED = 20
"""Failing cases for which the memory to blame is sought; one broken kernel fails everywhere for one reason."""
MAX_RECORDED = 8
"""Failing cases that are run with the first-NaN recorder."""
RECORDING_BUDGET_SECONDS = 45.0
MAX_SERVED = 3
"""Failing cases of vLLM that are served once more, with the recorder."""
SERVED_SECONDS = 120.0
"""What each of these adds to the budget."""
NOT_SOUGHT = "not sought: each trial would be a serving process; `mla-harness selftest` takes that time"
NOTHING_RAN = "nothing ran: every selected case was skipped; see the reasons above"
BLAME_BUDGET_SECONDS = 90.0
"""How long `run` may look for the memory to blame; each trial of a case that kills its worker costs a new worker."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a user asked to run."""

    selectors: tuple[str, ...] = ()
    tag: str | None = None
    device: str = "auto"
    kernel: str | None = None
    plugins: tuple[Path, ...] = ()
    fault: str | None = None
    seed: int = 0
    timeout_seconds: float = 60.0
    scenarios: Path | None = None

    def reproduction(self) -> dict[str, Any]:
        """What decides an outcome besides the case, for `run.json` and the commands in reports."""
        return {
            "device": self.device,
            "kernel": self.kernel,
            "plugins": [str(path) for path in self.plugins],
            "fault": self.fault,
            "seed": self.seed,
            "scenarios": str(self.scenarios) if self.scenarios else None,
        }


def load(wanted: Wanted) -> list[Scenario]:
    """The scenarios to choose from. Raises InputError for the first thing wrong in a file or an option."""
    if wanted.device not in ("auto", *DEVICES):
        raise InputError(f"--device {wanted.device}: unknown device; choose one of auto, {', '.join(DEVICES)}")
    if wanted.fault is not None:
        FAULTS.get(wanted.fault)
    return load_scenarios(wanted.scenarios)


def plan_jobs(wanted: Wanted, pool: Pool) -> list[Job]:
    """The jobs that the options ask for, in order. Raises InputError when they ask for nothing."""
    names = register_plugins(wanted, pool)
    scenarios = load(wanted)
    cases = with_each(names, lambda override: _select(wanted, scenarios, override, pool))
    return make_jobs(cases, wanted, pool, fault=wanted.fault)


def make_jobs(cases: Iterable[Case], wanted: Wanted, pool: Pool, fault: str | None = None) -> list[Job]:
    """One job for each case, on the device that fits it."""
    devices = Devices(wanted.device, pool, wanted.plugins)
    chosen = [(case, devices.choose(case)) for case in cases]
    return [
        Job(
            key=f"{case.id}!{fault}" if fault else case.id,
            case=on_device(case, device),
            fault=fault,
            device=device,
            plugins=tuple(str(path) for path in wanted.plugins),
            timeout_seconds=case.params.own_timeout or wanted.timeout_seconds,
        )
        for case, device in chosen
    ]


def plan_controls(jobs: Sequence[Job], wanted: Wanted, pool: Pool) -> list[Control]:
    """The measurements of accuracy among `jobs` once more, each with the fault that its scenario tries on it.

    For scenarios named as a whole only: a run of everything leaves faults to `selftest`, and a run of one case, of
    another kernel or under a fault is about that.
    """
    if wanted.fault or wanted.kernel or wanted.plugins:
        return []
    planned = {job.case.id for job in jobs if ACCURACY in job.case.tags}
    chosen = [s for s in load(wanted) if any(selects_scenario(selector, s) for selector in wanted.selectors)]
    pairs = [pair for scenario in chosen for pair in fault_cases(scenario, seed=wanted.seed)]
    return [
        Control(use=use, job=make_jobs([case], wanted, pool, fault=use.name)[0])
        for use, case in pairs
        if case.id in planned
    ]


class Devices:
    """Chooses where a case runs: `auto` is the GPU for a case whose kernels all run there, else the CPU."""

    def __init__(self, wanted: str, pool: Pool, plugins: tuple[Path, ...]) -> None:
        self._wanted = wanted
        self._on_gpu: set[str] = set()
        if wanted == "auto" and not pool.start().why_not("cuda"):
            described = pool.describe_kernels()
            if plugins:
                described += pool.describe_kernels([str(path) for path in plugins])
            self._on_gpu = {f"{d['op']}/{d['short_name']}" for d in described if not d["why_not"]["cuda"]}

    def choose(self, case: Case) -> str:
        """The device for one case."""
        if GPU in case.tags:
            return "cuda"
        if self._wanted != "auto":
            return self._wanted
        # A serving process takes the GPU itself, with all its memory stated: several may share one, no worker holds it.
        can_use_gpu = "cuda" in case.kind.devices
        return "cuda" if can_use_gpu and set(on_device(case, "cuda").kernels().values()) <= self._on_gpu else "cpu"


def register_plugins(wanted: Wanted, pool: Pool) -> list[str]:
    """Make the kernels of plug-in files known here without executing them here; returns the kernels to judge."""
    if wanted.kernel is not None and not wanted.plugins and not _is_known(wanted.kernel):
        # It may come from an installed package, which only a worker imports.
        _register(pool.describe_kernels())
    if not wanted.plugins:
        return [wanted.kernel] if wanted.kernel else []
    described = pool.describe_kernels([str(path) for path in wanted.plugins])
    _register(described)
    if wanted.kernel:
        return [wanted.kernel]
    return list(dict.fromkeys(str(declared["short_name"]) for declared in described))


def _register(described: list[dict[str, Any]]) -> None:
    for declared in described:
        fields = {name: _tupled(value) for name, value in declared.items() if name != "why_not"}
        spec = KernelSpec(impl="", **fields)
        if spec.name not in KERNELS:
            KERNELS.add(spec)


def _is_known(name: str) -> bool:
    return any(name in (spec.name, spec.short_name) for spec in KERNELS)


def _tupled(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def has_gpu(wanted: Wanted, pool: Pool) -> bool:
    """Whether cases that need a GPU can run: there is one, and the CPU was not asked for."""
    return wanted.device != "cpu" and not pool.start().why_not("cuda")


def _select(wanted: Wanted, scenarios: Sequence[Scenario], override: KernelOverride | None, pool: Pool) -> list[Case]:
    selectors = wanted.selectors
    if wanted.fault and not selectors:
        # A fault is tried where it is known to matter.
        selectors = tuple(s.name for s in scenarios if any(use.name == wanted.fault for use in s.faults))
    return select(
        scenarios, selectors, tag=wanted.tag, seed=wanted.seed, override=override, has_gpu=has_gpu(wanted, pool)
    )


def carry_out(store: RunStore, pool: Pool, jobs: Sequence[Job], live: LiveProgress) -> None:
    """Run `jobs`; each result is on disk before its worker gets another."""
    store.note_environment(pool.start().model_dump(mode="json"))
    controls = {control.job.key: control for control in store.unfinished_controls()}
    planned = longest_first([*jobs, *(control.job for control in controls.values())])
    for result in pool.run([store.placed(job) for job in planned], live.on_start):
        if result.key not in controls:
            store.add(result)
        elif result.verdict is not Verdict.SKIP:
            use, job = controls[result.key].use, controls[result.key].job
            blame = conclude(job, result, ()) if result.findings else Blame()
            store.add_fault(judge_fault(use, result, blame, 0.0))
        live.on_result(result, announce=result.key not in controls)


def longest_first(jobs: Sequence[Job]) -> list[Job]:
    """Measurements of accuracy before the rest: begun last, one of them would keep all other workers waiting."""
    return sorted(jobs, key=lambda job: not job.case.kind.asks_canary)


def find_blame(
    pool: Pool, failures: Sequence[tuple[Job, CaseResult]], *, budget_seconds: float = math.inf
) -> dict[str, tuple[Blame, float]]:
    """The memory to blame for each failing job, by its key, and the seconds that its trials took.

    All failures go through their rounds of trials together, so that the workers are never idle. Jobs whose trials
    are not done within `budget_seconds` are left out.
    """
    deadline = time.monotonic() + budget_seconds
    trials: dict[str, list[CaseResult]] = {job.key: [] for job, _ in failures}
    undecided = {job.key: (job, result) for job, result in failures}
    while undecided:
        rounds = {key: plan_trials(job, result, trials[key]) for key, (job, result) in undecided.items()}
        for key in [key for key, jobs in rounds.items() if not jobs]:
            del undecided[key]
        found: dict[str, CaseResult] = {}
        for result in pool.run([trial for jobs in rounds.values() for trial in jobs]):
            found[result.key] = result
            if time.monotonic() > deadline:
                break
        for key in undecided:
            if any(trial.key not in found for trial in rounds[key]):
                return _concluded(failures, trials, undecided)
            trials[key] += [found[trial.key] for trial in rounds[key]]
    return _concluded(failures, trials, {})


def _concluded(
    failures: Sequence[tuple[Job, CaseResult]], trials: dict[str, list[CaseResult]], undecided: Container[str]
) -> dict[str, tuple[Blame, float]]:
    return {
        job.key: (conclude(job, result, trials[job.key]), sum(trial.seconds for trial in trials[job.key]))
        for job, result in failures
        if job.key not in undecided
    }


def blame_failures(store: RunStore, pool: Pool) -> None:
    """Seek the memory to blame for failing cases of a run that have none yet, and store it."""
    jobs, blamed = store.jobs_by_key(), store.blames()
    failures = [
        (jobs[result.key], result)
        for result in store.results()
        if result.verdict in FAILED and result.findings and result.key not in blamed
    ]
    # A hang is not waited for twenty times more.
    quick = [(job, result) for job, result in failures if result.seconds < job.timeout_seconds]
    # A trial of vLLM is a serving process of half a minute: `selftest` takes that time, and here is one, recorded.
    served = [(job, result) for job, result in quick if job.case.kind.serves][:MAX_SERVED]
    quick = [(job, result) for job, result in quick if not job.case.kind.serves][:MAX_BLAMED]
    found = find_blame(pool, quick, budget_seconds=BLAME_BUDGET_SECONDS)
    for key, (blame, _) in found.items():
        store.add_blame(key, blame)
    blames = {key: blame for key, (blame, _) in found.items()}
    blames |= {job.key: Blame(how=NOT_SOUGHT) for job, _ in served}
    for key, blame in with_first_nan(pool, served + quick, blames).items():
        store.add_blame(key, blame)


def with_first_nan(
    pool: Pool, failures: Sequence[tuple[Job, CaseResult]], blames: dict[str, Blame]
) -> dict[str, Blame]:
    """The blames of failing cases with the first writer and the first reader: each case once more, recorded."""
    wanted = {job.key: job for job, _ in failures if job.key in blames and not why_not_recorded(job)}
    jobs = [recorded_job(job, blames[key]) for key, job in list(wanted.items())[:MAX_RECORDED]]
    keys = {job.key: key for job, key in zip(jobs, wanted, strict=False)}
    found: dict[str, Blame] = {}
    num_served = sum(job.case.kind.serves for job in jobs)
    deadline = time.monotonic() + RECORDING_BUDGET_SECONDS + num_served * SERVED_SECONDS
    for result in pool.run(jobs):
        key = keys[result.key]
        if result.first_nan is not None:
            found[key] = blames[key].model_copy(update={"first_nan": result.first_nan})
        if time.monotonic() > deadline:
            break
    return found


@contextmanager
def stoppable(store: RunStore) -> Iterator[None]:
    """Time this stretch of a run, and let SIGTERM end it as Ctrl-C does: orderly, with what there is."""

    def stop(signum: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    started = time.monotonic()
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        store.add_seconds(time.monotonic() - started)


def exit_code(
    results: Sequence[CaseResult], faults: Sequence[FaultResult] = (), tried: Iterable[CaseResult] = ()
) -> int:
    """0 when every case that ran passed, 1 for a regression or a missed fault, 3 when the harness could not judge.

    `tried` is what the cases gave with the `faults`: one that ended in an error was not judged, so not missed.
    """
    verdicts = {result.verdict for result in results}
    errors = {(result.fault, result.id) for result in tried if result.verdict is Verdict.ERROR}
    missed = {(fault.fault, fault.case) for fault in faults if not fault.caught}
    if verdicts & set(FAILED) or missed - errors:
        return 1
    return 3 if errors or Verdict.ERROR in verdicts else 0
