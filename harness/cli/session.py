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

from harness.catalog import FAULTS, KERNELS
from harness.diagnose.blame import conclude, plan_trials
from harness.errors import InputError
from harness.kernels.spec import KernelSpec
from harness.plan.override import KernelOverride
from harness.plan.selection import select
from harness.records import Blame, Case, CaseResult, Job, Verdict
from harness.report.terminal import LiveProgress
from harness.results.store import RunStore
from harness.run.environment import DEVICES
from harness.run.runner import WorkerPool
from harness.scenario.load import load_scenarios
from harness.scenario.matrix import kernel_fields
from harness.scenario.schema import Scenario

FAILED = (Verdict.FAIL, Verdict.CRASH)
MAX_BLAMED = 20
"""Failing cases for which the memory to blame is sought; one broken kernel fails everywhere for one reason."""
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


def plan_jobs(wanted: Wanted, pool: WorkerPool) -> list[Job]:
    """The jobs that the options ask for, in order. Raises InputError when they ask for nothing."""
    names = register_plugins(wanted, pool)
    scenarios = load(wanted)
    cases: dict[str, Case] = {}
    overrides: list[str | None] = [*names] or [None]
    for name in overrides:
        override = KernelOverride.named(name) if name else None
        for case in _select(wanted, scenarios, override):
            cases.setdefault(case.id, case)
    return make_jobs(cases.values(), wanted, pool, fault=wanted.fault)


def make_jobs(cases: Iterable[Case], wanted: Wanted, pool: WorkerPool, fault: str | None = None) -> list[Job]:
    """One job for each case, on the device that fits it."""
    devices = Devices(wanted.device, pool, wanted.plugins)
    return [
        Job(
            key=f"{case.id}!{fault}" if fault else case.id,
            case=case,
            fault=fault,
            device=devices.choose(case),
            plugins=tuple(str(path) for path in wanted.plugins),
            timeout_seconds=wanted.timeout_seconds,
        )
        for case in cases
    ]


class Devices:
    """Chooses where a case runs: `auto` is the GPU for a case whose kernels all run there, else the CPU."""

    def __init__(self, wanted: str, pool: WorkerPool, plugins: tuple[Path, ...]) -> None:
        self._wanted = wanted
        self._on_gpu: set[str] = set()
        if wanted == "auto" and not pool.start().why_not("cuda"):
            described = pool.describe_kernels()
            if plugins:
                described += pool.describe_kernels([str(path) for path in plugins])
            self._on_gpu = {f"{d['op']}/{d['short_name']}" for d in described if not d["why_not"]["cuda"]}

    def choose(self, case: Case) -> str:
        """The device for one case."""
        if self._wanted != "auto":
            return self._wanted
        fields = kernel_fields(case.system, case.params.get("op"))
        names = {f"{op}/{case.params.get(name)}" for name, op in fields.items()}
        # The reference engine's own memory is on the CPU; only single kernels can run elsewhere.
        return "cuda" if case.system == "kernel" and names <= self._on_gpu else "cpu"


def register_plugins(wanted: Wanted, pool: WorkerPool) -> list[str]:
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


def _select(wanted: Wanted, scenarios: Sequence[Scenario], override: KernelOverride | None) -> list[Case]:
    selectors = wanted.selectors
    if wanted.fault and not selectors:
        # A fault is tried where it is known to matter.
        selectors = tuple(s.name for s in scenarios if any(use.name == wanted.fault for use in s.faults))
    return select(scenarios, selectors, tag=wanted.tag, seed=wanted.seed, override=override)


def carry_out(store: RunStore, pool: WorkerPool, jobs: Sequence[Job], live: LiveProgress) -> None:
    """Run `jobs`; each result is on disk before its worker gets another."""
    store.note_environment(pool.start().model_dump(mode="json"))
    for result in pool.run(jobs, live.on_start):
        store.add(result)
        live.on_result(result)


def find_blame(
    pool: WorkerPool, failures: Sequence[tuple[Job, CaseResult]], *, budget_seconds: float = math.inf
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


def blame_failures(store: RunStore, pool: WorkerPool) -> None:
    """Seek the memory to blame for failing cases of a run that have none yet, and store it."""
    jobs, blamed = store.jobs_by_key(), store.blames()
    failures = [
        (jobs[result.key], result)
        for result in store.results()
        if result.verdict in FAILED and result.findings and result.key not in blamed
    ]
    # A hang is not waited for twenty times more.
    quick = [(job, result) for job, result in failures if result.seconds < job.timeout_seconds][:MAX_BLAMED]
    for key, (blame, _) in find_blame(pool, quick, budget_seconds=BLAME_BUDGET_SECONDS).items():
        store.add_blame(key, blame)


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


def exit_code(results: Sequence[CaseResult]) -> int:
    """0 when every case that ran passed, 1 for a regression, 3 when the harness could not judge."""
    verdicts = {result.verdict for result in results}
    if verdicts & set(FAILED):
        return 1
    return 3 if Verdict.ERROR in verdicts else 0
