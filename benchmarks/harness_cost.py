"""The cost of the harness: the child of `mla-harness bench`, `harness_cost`.

A case is timed whole: inputs, runs under each of its patterns, reference and oracles. Its
unpoisoned twin is the same case on zeroed memory, with allocations not intercepted. The two
alternate, after one untimed turn each, so that a slow phase of the machine hits both.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import torch
from bench_command import MeasureCases

from harness.core.cases import Case, Job
from harness.core.conditions.model import Space
from harness.core.engine_params import EngineParams
from harness.core.records import CaseResult, Verdict
from harness.engine.batch import Batch
from harness.engine.probe import Probe
from harness.judge.run_case import run_case
from harness.judge.targets.engine import EngineTarget
from harness.judge.verdict import poison_of
from harness.kernels.call import without_interception
from harness.run.protocol import answer_once


class StepTimer(Probe):
    """Seconds of the replay and of its eager twin, for each step that an engine replays.

    The engine runs the twin right after the replay, on a copy of the same memory.
    """

    def __init__(self) -> None:
        self.steps: list[tuple[float, float]] = []
        self._replay: float | None = None

    @contextlib.contextmanager
    def on_replay(self, inputs: Batch) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self._replay = time.perf_counter() - started

    @contextlib.contextmanager
    def on_forward(self, num_tokens: int) -> Iterator[None]:
        started = time.perf_counter()
        yield
        if self._replay is not None:
            self.steps.append((self._replay, time.perf_counter() - started))
            self._replay = None


def run_poisoned(case: Case) -> CaseResult:
    """The case as `run` runs it."""
    return run_case(Job(key=case.id, case=case))


def run_unpoisoned(case: Case) -> CaseResult:
    """The same case, the same number of times, without poison."""
    with without_interception():
        return run_case(Job(key=case.id, case=case, sites=()))


def run_unrecorded(case: Case) -> CaseResult:
    """The same case, and nothing reads the conditions of its calls and steps."""
    with patch.object(Space, "shown", lambda *_: ()):
        return run_poisoned(case)


def measure_case(case: Case, repeats: int) -> tuple[float, float, float]:
    """Median seconds of the case with poison, without, and with poison and without the recorder, in
    turns.
    """
    runs = (run_poisoned, run_unpoisoned, run_unrecorded)
    seconds: dict[Callable[[Case], CaseResult], list[float]] = {run: [] for run in runs}
    run_unpoisoned(case)
    for _ in range(repeats):
        for run, taken in seconds.items():
            started = time.perf_counter()
            run(case)
            taken.append(time.perf_counter() - started)
    poisoned, unpoisoned, unrecorded = (statistics.median(seconds[run]) for run in runs)
    return poisoned, unpoisoned, unrecorded


def replay_ratio(case: Case) -> float | None:
    """Median over graph steps of replay seconds / eager seconds; None without graph steps of the
    reference engine.
    """
    if not isinstance(case.params, EngineParams) or not case.params.has_graph:
        return None
    timer = StepTimer()
    torch.manual_seed(case.seed)
    with without_interception():
        for pattern in case.poison.patterns:
            poison = poison_of(case.poison, pattern, frozenset(), case.seed)
            EngineTarget(case).run(poison, probe=timer)
    # The first step warms up caches.
    ratios = [replay / eager for replay, eager in timer.steps[1:]]
    return statistics.median(ratios) if ratios else None


def measure(cases: list[Case], repeats: int) -> dict[str, Any]:
    """Measure the cases that pass here. Lists the others with the reason."""
    skipped: list[str] = []
    seconds: list[float] = []
    poison: dict[str, float] = {}
    replay: dict[str, float] = {}
    recorder: dict[str, float] = {}
    for case in cases:
        first = run_poisoned(case)
        if first.verdict is not Verdict.PASS:
            skipped.append(f"{case.id}: {first.verdict.value}: {first.reason}")
            continue
        poisoned, plain, unrecorded = measure_case(case, repeats)
        seconds.append(poisoned)
        poison[case.id] = poisoned / plain
        recorder[case.id] = poisoned / unrecorded
        ratio = replay_ratio(case)
        if ratio is not None:
            replay[case.id] = ratio
    return {
        "num_cases": len(seconds),
        "repeats": repeats,
        "cases_per_second": round(len(seconds) / sum(seconds), 3) if seconds else 0.0,
        "seconds_per_case_median": round(statistics.median(seconds), 5) if seconds else 0.0,
        "poison": summary(poison),
        "replay": summary(replay),
        "recorder": summary(recorder),
        "skipped": skipped,
    }


def summary(ratios: dict[str, float]) -> dict[str, Any]:
    """Median and worst of ratios by case id; None without a ratio."""
    if not ratios:
        return {"num_cases": 0, "median": None, "worst": None, "worst_case": None}
    worst = max(ratios, key=lambda case_id: ratios[case_id])
    return {
        "num_cases": len(ratios),
        "median": round(statistics.median(ratios.values()), 3),
        "worst": round(ratios[worst], 3),
        "worst_case": worst,
    }


def answer(request: MeasureCases) -> dict[str, Any]:
    """Take the requested measurements on one thread."""
    torch.set_num_threads(1)
    return measure(list(request.cases), request.repeats)


if __name__ == "__main__":
    answer_once(MeasureCases, answer)
