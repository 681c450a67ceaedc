"""Fill a history with invented runs of the shipped scenarios, and time the commands that read it.

    python tools/history_fill.py --runs 1000 --history /path/to/new.sqlite

Case ids, seeds and faults are those of `mla-harness selftest`, and as many; verdicts, seconds, accuracies are drawn:
a case breaks at a commit and is mended some commits later, a few are flaky, accuracies wobble. Needs no torch. Exit
code 1 when a command takes longer than `--limit-seconds` (the best of some, a Python start included).
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from harness.scenario.expand import fault_cases  # noqa: E402
from harness.scenario.load import load_scenarios  # noqa: E402
from harness.scenario.selection import select  # noqa: E402
from harness.store.history.database import opened  # noqa: E402
from harness.store.history.entry import CaseEntry, FaultEntry, RunEntry  # noqa: E402
from harness.store.history.write import write_run  # noqa: E402
from harness.store.source import Source  # noqa: E402

RUNS_A_COMMIT = 3
START = datetime(2024, 1, 1, 2, 17, tzinfo=UTC)
REASON = "NaN in live rows of out, computed from the poison of kv.tail: {count} elements (pattern nan)"


def planned() -> tuple[list[CaseEntry], list[FaultEntry]]:
    """Every case and fault of a selftest, as one that passed in its usual time."""
    draw = random.Random(0)
    scenarios = load_scenarios(None)
    cases = [
        CaseEntry(
            key=case.id, scenario=case.scenario, verdict="pass", seed=case.seed, seconds=draw.lognormvariate(-1.2, 0.9),
            accuracies=(1.0, 1.0, 1.0) if case.system == "accuracy" else (),
        )
        for case in select(scenarios, (), tag=None, seed=0)
    ]  # fmt: skip
    faults = [
        FaultEntry(use.name, case.scenario, case.id, caught=True, seconds=1.0, oracles=(use.caught_by,))
        for scenario in scenarios
        for use, case in fault_cases(scenario, seed=0)
    ]
    return cases, faults


def invented(number: int, cases: list[CaseEntry], faults: list[FaultEntry], draw: random.Random) -> RunEntry:
    """Run `number`: what breaks depends on its commit alone, what flakes on luck."""
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
        return replace(
            case, verdict="fail", seconds=seconds, note=note, oracles=("finite", "reference"), blamed=("kv.tail",),
            accuracies=tuple(round(one - draw.choice((0.0, 0.25)), 4) for one in case.accuracies),
        )  # fmt: skip
    if case.scenario.startswith("vllm"):
        return replace(case, verdict="skip", seconds=0.0, note="no CUDA device", accuracies=())
    return replace(case, seconds=seconds)


def fill(path: Path, num_runs: int) -> tuple[int, float]:
    """Write the runs one by one, as runs are written; returns the cases of a run and the seconds a run took."""
    cases, faults = planned()
    draw = random.Random(1)
    started = time.perf_counter()
    with opened(path, create=True) as connection:
        for number in range(num_runs):
            write_run(connection, invented(number, cases, faults, draw))
            if number % 100 == 99:
                print(f"{number + 1} of {num_runs} runs", file=sys.stderr)
    return len(cases), (time.perf_counter() - started) / num_runs


def timed(words: list[str], history: Path, repeats: int) -> tuple[float, float]:
    """The best of `repeats` of one command: seconds from its start to its end, and of those the processor's."""
    best, least = float("inf"), float("inf")
    for _ in range(repeats):
        started, before = time.perf_counter(), os.times()
        done = subprocess.run(
            [sys.executable, "-P", "-m", "harness.cli.main", *words, "--history", str(history)],
            env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        best = min(best, time.perf_counter() - started)
        after = os.times()
        least = min(least, after.children_user + after.children_system - before.children_user - before.children_system)
        if done.returncode not in (0, 1) or not done.stdout:
            raise SystemExit(f"{' '.join(words)}: exit code {done.returncode}: {done.stderr.strip()}")
    return best, least


def main() -> int:
    """Fill, time, print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--history", type=Path, help="a file that is not there yet; a temporary one if left out")
    parser.add_argument("--limit-seconds", type=float, default=1.5)
    parser.add_argument("--repeats", type=int, default=5, help="how often each command is timed; the best counts")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        path = asked.history or Path(scratch) / "history.sqlite"
        if path.exists():
            parser.error(f"{path} exists; name a new file, so that no real run is mixed with invented ones")
        num_cases, seconds = fill(path, asked.runs)
        size = path.stat().st_size / 1e6
        print(f"{asked.runs} runs of {num_cases} cases, {size:.1f} MB, {seconds * 1000:.1f} ms to write a run")
        everything = ["--limit", "100000"]
        commands = (
            ["history"], ["history", "decode-kernel"], ["history", "decode-kernel", *everything],
            ["history", planned()[0][0].key, *everything], ["history", "--since", "2024-06-01", "--branch", "main"],
            ["compare", "previous", "latest"], ["compare"],
        )  # fmt: skip
        slowest = 0.0
        for words in commands:
            took, worked = timed(words, path, asked.repeats)
            slowest = max(slowest, took)
            print(f"{took:6.2f} s, {worked:.2f} s of processor time:  mla-harness {' '.join(words)}")
    return int(slowest > asked.limit_seconds)


if __name__ == "__main__":
    sys.exit(main())
