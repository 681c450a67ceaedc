"""Kill runs at random moments, go on with --resume, and count results that are lost or there twice.

python -m trust.disturbances.kill_runs --trials 20 [--seed N] prints a table. SIGKILL hits the
parent, a worker, or both; more trials have a clock that jumps by hours at each look. `disturbed.py`
fills the disk.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.store.history.entry import read_entry
from tests.waiting import HANG_SECONDS
from trust.disturbances.aftermath import workers_of

ROOT = Path(__file__).parents[2]
SELECTORS = ("write-kv-kernel", "merge-kernel", "router-kernel", "quantize-kernel", "decode-kernel")
JUMPING = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
int clock_gettime(clockid_t clock, struct timespec *now) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  int code = real(clock, now);
  if (clock == CLOCK_REALTIME) now->tv_sec += rand() % 172800 - 86400;
  return code;
}
"""
"""A library that lets the clock of a process jump by up to a day at each look."""
NUM_RESULTS = 72


@dataclass(frozen=True, slots=True)
class Trial:
    """One run that was disturbed and finished: what was done to it, and what is on disk at its
    end.
    """

    kind: str
    moment: str
    stored: int
    """Results on disk when it was disturbed."""
    planned: int
    lost: int
    doubled: int
    crashes: int
    """Cases whose worker was killed, which is a result too."""
    in_history: int

    @property
    def is_good(self) -> bool:
        return self.lost == self.doubled == 0 and self.planned == self.in_history


@dataclass(frozen=True, slots=True)
class Moment:
    """So many seconds after the start, or as soon as so many results are on disk."""

    seconds: float = 0.0
    results: int = 0

    @classmethod
    def drawn(cls, rng: random.Random, longest: float) -> Moment:
        """A moment of the first `longest` seconds, or in the middle of the results."""
        if rng.random() < 0.4:
            return cls(seconds=round(rng.uniform(0.1, longest), 2))
        return cls(results=rng.randint(1, NUM_RESULTS - 1))

    def wait(self, bench: Bench, process: subprocess.Popen[str]) -> None:
        """Sleep until the moment, or until the process ends."""
        started = time.monotonic()
        while process.poll() is None:
            if (
                len(bench.stored()) >= self.results
                if self.results
                else time.monotonic() - started >= self.seconds
            ):
                return
            time.sleep(0.005)

    def __str__(self) -> str:
        return f"{self.results} results" if self.results else f"{self.seconds} s"


class Bench:
    """One folder of runs for a trial."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.out = folder, folder / "runs"

    def start(self, *words: str, environ: dict[str, str] | None = None) -> subprocess.Popen[str]:
        """Start `mla-harness run` with these words."""
        command = [sys.executable, "-m", "harness.cli.main", "run", *words, "--out", str(self.out)]
        command += ["-n", "2"]
        paths = os.pathsep.join(filter(None, ((environ or {}).get("PYTHONPATH"), str(ROOT))))
        env = os.environ | (environ or {}) | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, stdout=pipe, stderr=pipe, text=True, env=env, cwd=self.folder
        )

    def run_folder(self) -> Path | None:
        """The folder of the run, if it has begun."""
        return next((file.parent for file in self.out.glob("*/run.json")), None)

    def stored(self) -> list[str]:
        """The key of each result on disk; a torn line is none."""
        run = self.run_folder()
        keys = []
        for line in (
            (run / "results.jsonl").read_text().splitlines()
            if run and (run / "results.jsonl").exists()
            else []
        ):
            try:
                keys.append(json.loads(line)["key"])
            except ValueError:
                continue
        return keys

    def finish(self, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Go on with the run, or begin it if nothing of it is on disk."""
        run = self.run_folder()
        process = self.start(*(("--resume", str(run)) if run else SELECTORS), environ=environ)
        stdout, stderr = process.communicate(timeout=HANG_SECONDS)
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    def trial(self, kind: str, moment: Moment, before: int) -> Trial:
        """Count what the finished run has on disk and in its summary."""
        run = self.run_folder()
        assert run is not None
        planned = [job["key"] for job in json.loads((run / "run.json").read_text())["jobs"]]
        counts = Counter(self.stored())
        lines = [
            json.loads(line)
            for line in (run / "results.jsonl").read_text().splitlines()
            if line.endswith("}")
        ]
        in_history = len(read_entry(run).entries)
        lost, doubled = len(set(planned) - set(counts)), sum(counts.values()) - len(counts)
        crashes = sum(line["verdict"] == "crash" for line in lines)
        return Trial(kind, str(moment), before, len(planned), lost, doubled, crashes, in_history)


def killed(bench: Bench, kind: str, moment: Moment) -> Trial:
    """Kill the parent, a worker or both after `moment` seconds, and go on."""
    process = bench.start(*SELECTORS)
    moment.wait(bench, process)
    before = len(bench.stored())
    victims = ([process.pid] if kind in ("parent", "both") else []) + (
        workers_of(process.pid) if kind != "parent" else []
    )
    for victim in victims[: 1 if kind == "worker" else None]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
    process.communicate(timeout=HANG_SECONDS)
    bench.finish()
    return bench.trial(kind, moment, before)


def clock_jumps(bench: Bench, kind: str, moment: Moment) -> Trial:
    """The clock of every process jumps by up to a day at each look, and the parent is killed."""
    source, library = bench.folder / "jump.c", bench.folder / "jump.so"
    source.write_text(JUMPING)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    environ = {"LD_PRELOAD": str(library)}
    process = bench.start(*SELECTORS, environ=environ)
    moment.wait(bench, process)
    before = len(bench.stored())
    process.kill()
    process.communicate(timeout=HANG_SECONDS)
    bench.finish(environ)
    return bench.trial(kind, moment, before)


KINDS: dict[str, Callable[[Bench, str, Moment], Trial]] = {
    "parent": killed,
    "worker": killed,
    "both": killed,
    "clock": clock_jumps,
}


def trials(kinds: list[str], seed: int, longest: float) -> list[Trial]:
    """One trial of each of the `kinds`, at random moments."""
    rng = random.Random(seed)
    found = []
    for kind in kinds:
        with tempfile.TemporaryDirectory() as folder:
            found.append(KINDS[kind](Bench(Path(folder)), kind, Moment.drawn(rng, longest)))
            print("\t".join(map(str, (kind, found[-1].moment, *_cells(found[-1])))), flush=True)
    return found


def _cells(trial: Trial) -> tuple[object, ...]:
    return (trial.stored, trial.planned, trial.lost, trial.doubled, trial.crashes, trial.in_history)


def main() -> None:
    """Print one line for each trial, and the sums."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--longest", type=float, default=8.0)
    given = parser.parse_args()
    print("disturbed\tmoment\tstored\tplanned\tlost\tdoubled\tcrash\tin summary")
    kinds = [("parent", "worker", "both")[number % 3] for number in range(given.trials)]
    found = trials([*kinds, "clock", "clock"], given.seed, given.longest)
    print(
        f"{len(found)} runs: {sum(t.lost for t in found)} results lost,"
        f" {sum(t.doubled for t in found)} doubled"
    )
    sys.exit(not all(trial.is_good for trial in found))


if __name__ == "__main__":
    main()
