"""Fill a history with invented runs of the shipped scenarios, and time the commands that read it.

    python tools/history_fill.py [--runs 1000]

A run has the case ids, seeds and faults of `mla-harness selftest`. Verdicts, seconds and accuracies are drawn: a case
breaks at a commit and is fixed some commits later, a few are flaky, accuracies vary. Needs no torch. Exit code 1 when
the best of five calls of a command takes longer than 1.5 s, the start of Python included.
"""

from __future__ import annotations

import argparse
import os
import random
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from harness.scenario.expand import fault_cases
from harness.scenario.load import load_scenarios
from harness.scenario.selection import select
from harness.store.history.database import opened
from harness.store.history.entry import CaseEntry, FaultEntry, RunEntry, write_run
from harness.store.source import Source

RUNS_A_COMMIT = 3
LIMIT_SECONDS = 1.5
REPEATS = 5
START = datetime(2024, 1, 1, 2, 17, tzinfo=UTC)
REASON = "NaN in live rows of out, computed from the poison of kv.tail: {count} elements (pattern nan)"


def planned() -> tuple[list[CaseEntry], list[FaultEntry]]:
    """Every case and fault of a selftest, passed in its usual time."""
    draw = random.Random(0)
    scenarios = load_scenarios(None)
    cases = []
    for case in select(scenarios, (), tag=None, seed=0):
        seconds, accuracies = draw.lognormvariate(-1.2, 0.9), (1.0,) * 3 if case.system == "accuracy" else ()
        cases.append(CaseEntry(case.id, case.scenario, "pass", seed=case.seed, seconds=seconds, accuracies=accuracies))
    faults = [
        FaultEntry(use.name, case.scenario, case.id, caught=True, seconds=1.0, oracles=(use.caught_by,))
        for scenario in scenarios
        for use, case in fault_cases(scenario, seed=0)
    ]
    return cases, faults


def invented(number: int, cases: list[CaseEntry], faults: list[FaultEntry], draw: random.Random) -> RunEntry:
    """Run `number`. The broken cases depend on its commit alone, the flaky ones on `draw`."""
    commit = random.Random(number // RUNS_A_COMMIT).randbytes(20).hex()
    broken = set(random.Random(number // (RUNS_A_COMMIT * 4)).sample(range(len(cases)), 4))
    started = START + timedelta(hours=8 * number)
    return RunEntry(
        run_id=f"{started:%Y%m%dT%H%M%SZ}-{number % 65536:04x}",
        started=started.isoformat(timespec="seconds"),
        seconds=55 + draw.random() * 10,
        command="mla-harness selftest",
        source=Source(commit=commit, branch="main" if number % 5 else f"topic-{number // 50}"),
        variant="0123456789abcdef",
        folder=f"reports/runs/{number}",
        num_planned=len(cases),
        cases=tuple(_drawn(case, index in broken, index % 97 == 5, draw) for index, case in enumerate(cases)),
        faults=tuple(replace(fault, seconds=draw.uniform(0.5, 2.0)) for fault in faults),
    )


def _drawn(case: CaseEntry, is_broken: bool, is_flaky: bool, draw: random.Random) -> CaseEntry:
    seconds = round(case.seconds * draw.uniform(0.85, 1.3), 3)
    if is_broken or (is_flaky and draw.random() < 0.1):
        note = REASON.format(count=draw.choice((64, 4096, 32768)))
        accuracies = tuple(round(one - draw.choice((0.0, 0.25)), 4) for one in case.accuracies)
        failed = replace(case, verdict="fail", seconds=seconds, note=note, accuracies=accuracies)
        return replace(failed, oracles=("finite", "reference"), blamed=("kv.tail",))
    if case.scenario.startswith("vllm"):
        return replace(case, verdict="skip", seconds=0.0, note="no CUDA device", accuracies=())
    return replace(case, seconds=seconds)


def fill(path: Path, num_runs: int) -> tuple[list[CaseEntry], float]:
    """Write the runs one by one. Returns the cases of a run and the seconds that one write took."""
    cases, faults = planned()
    draw = random.Random(1)
    started = time.perf_counter()
    with opened(path, create=True) as connection:
        for number in range(num_runs):
            write_run(connection, invented(number, cases, faults, draw))
    return cases, (time.perf_counter() - started) / num_runs


def timed(command: str, history: Path) -> tuple[float, float]:
    """The best of some calls of one command: seconds from start to end, and seconds of processor time."""
    words = [*shlex.split(command), "--history", str(history)]
    walls, processors = [], []
    for _ in range(REPEATS):
        started, before = time.perf_counter(), os.times()
        done = subprocess.run(
            [sys.executable, "-P", "-m", "harness.cli.main", *words], capture_output=True, text=True, check=False
        )
        walls.append(time.perf_counter() - started)
        after = os.times()
        processors.append(sum(after[2:4]) - sum(before[2:4]))
        if done.returncode not in (0, 1) or not done.stdout:
            raise SystemExit(f"{command}: exit code {done.returncode}: {done.stderr.strip()}")
    return min(walls), min(processors)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1000)
    num_runs = parser.parse_args().runs
    slowest = 0.0
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "history.sqlite"
        cases, seconds = fill(path, num_runs)
        size = path.stat().st_size / 1e6
        print(f"{num_runs} runs of {len(cases)} cases, {size:.1f} MB, {seconds * 1000:.1f} ms to write a run")
        for command in (
            "history",
            "history decode-kernel",
            "history decode-kernel --limit 100000",
            f"history {shlex.quote(cases[0].key)} --limit 100000",
            "history --since 2024-06-01 --branch main",
            "compare previous latest",
            "compare",
        ):
            took, worked = timed(command, path)
            slowest = max(slowest, took)
            print(f"{took:6.2f} s, {worked:.2f} s of processor time:  mla-harness {command}")
    return int(slowest > LIMIT_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
