"""Kill `run`, `selftest`, `survey` and `serve-check` at random moments, or let their disk be full; then go on.

python tests/cli/disturbed.py --trials 40 [--seed N] prints a table. After each trial no process of the command lives,
no file is torn, `report` and `compare` read the run, and `--resume` ends it with each result once. `kill_runs.py` has
more of `run`: clocks that jump. A small disk is a tmpfs, so it needs root. SGLANG names the folder of an SGLang.
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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import aftermath  # type: ignore[import-not-found]
from aftermath import ROOT, environment, harness, living, wrong_words

SERVER = ROOT / "tests" / "servers" / "sequence_server.py"
COMMANDS: dict[str, tuple[str, ...]] = {
    "run": ("run", "write-kv-kernel", "merge-kernel", "-n", "2"),
    "selftest": ("selftest", "write-kv-kernel", "quantize-zeros", "-n", "2"),
    "survey": ("survey", "vllm", "--seconds", "5", "--scenarios", "surveyed", "-n", "2"),
    "survey of SGLang": ("survey", "sglang", "--seconds", "5", "--scenarios", "surveyed", "-n", "2"),
    "moves": ("run", "memory-moves-host", "memory-moves-handoff", "-n", "2"),
    "serve-check": ("serve-check", "URL", "--script", "cache-reuse"),
    "serve-check of drawn traces": ("serve-check", "URL", "--fuzz", "6", "--seed", "1"),
}
if SGLANG := os.environ.get("SGLANG"):
    COMMANDS["SGLang on a CPU"] = ("run", "-m", "sglang-host", "--engine-path", SGLANG, "-n", "2")
KINDS = ("kill", "killed worker", "small disk", "file limit")
STORED = ("results.jsonl", "tried.jsonl")
SURVEY = "merge-kernel"
"""The scenario that stands for an engine's survey: its options are points of a kernel."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One disturbed command: what was done to it, what it stored till then, and what is wrong afterwards."""

    command: str
    kind: str
    moment: str
    code: int
    stored: int
    results: int
    wrong: tuple[str, ...]
    said: str

    def __str__(self) -> str:
        counts = f"exit {self.code}\t{self.stored} stored\t{self.results} at the end"
        return f"{self.command}\t{self.kind}\t{self.moment}\t{counts}\t{'; '.join(self.wrong)}\t{self.said[:120]!r}"


def trial(command: str, kind: str, rng: random.Random, folder: Path) -> Trial:
    """Disturb a command, look at what it left, go on with it, and look again."""
    out = folder / "runs"
    out.mkdir()
    _write_survey(folder / "surveyed", command)
    with _server(command) as url:
        words = [url if word == "URL" else word for word in COMMANDS[command]]
        words += ["--out", str(out)]
        limit: tuple[str, ...] = ()
        if kind == "file limit":
            moment = f"{(size := rng.choice([2, 8, 20, 60, 150]))} KiB a file"
            limit = (f"--fsize={size * 1024}",)
        with _small_disk(out, rng.choice([4, 40, 100, 200, 400])) if kind == "small disk" else _no_disk() as disk:
            moment = disk if kind != "file limit" else moment
            process = _started(words, folder, limit)
            if kind in ("kill", "killed worker"):
                moment = _kill(process, out, rng, kind)
            stdout, stderr = process.communicate(timeout=300)
            stored = len(_keys(out))
            wrong = wrong_words(stdout + stderr) + _living(process.pid)
            if kind == "small disk":
                _grow(out)
            wrong += [] if kind.startswith("kill") else aftermath.torn_files(out)
            resumed = ""
            if run := next((plan.parent for plan in out.glob("*/run.json")), None):
                wrong += aftermath.left_behind(process.pid, out)
                wrong += _gone_on(COMMANDS[command][0], run, folder, 1 if kind == "killed worker" else 0)
                resumed = ", went on"
            keys = Counter(_keys(out))
            wrong += [f"{key} is stored twice" for key, count in keys.items() if count > 1]
            said = (stderr.strip().splitlines() or [""])[-1] + resumed
            return Trial(command, kind, moment, process.returncode, stored, len(keys), tuple(wrong), said)


def _started(words: list[str], folder: Path, limit: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(
        harness(*words, folder=folder, limit=limit), stdout=pipe, stderr=pipe, text=True,
        env=environment(folder), cwd=folder, start_new_session=True,
    )  # fmt: skip


def _kill(process: subprocess.Popen[str], out: Path, rng: random.Random, kind: str) -> str:
    """Send SIGKILL after some seconds, or once so many results are on disk. Returns the moment.

    A killed worker is a result too: a crash of the case that it ran.
    """
    started, seconds, results = time.monotonic(), rng.uniform(0.2, 30.0), rng.randint(1, 30)
    by_results = rng.random() < 0.75
    while process.poll() is None:
        if (len(_keys(out)) >= results) if by_results else (time.monotonic() - started >= seconds):
            break
        time.sleep(0.01)
    workers = _workers(process.pid)
    with contextlib.suppress(ProcessLookupError):
        os.kill(rng.choice(workers) if kind == "killed worker" and workers else process.pid, signal.SIGKILL)
    return f"{results} results" if by_results else f"{seconds:.1f} s"


def _workers(parent: int) -> list[int]:
    """The processes that run cases for `parent`: their command line names it."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if str(parent).encode() in words and {b"harness.run.worker", b"harness.run.fork_server"} & set(words):
                found.append(int(folder.name))
    return found


def _gone_on(command: str, run: Path, folder: Path, most: int) -> list[str]:
    """What is wrong with the rest of a run, whose exit code may be `most`. `serve-check` stores a run at its end."""
    if command == "serve-check":
        return []
    words = [command, "--resume", str(run), "-n", "2"]
    process = _started(words, folder)
    stdout, stderr = process.communicate(timeout=300)
    wrong = wrong_words(stdout + stderr) + aftermath.left_behind(process.pid, run.parent)
    if process.returncode not in (0, most):
        wrong.append(f"--resume ends with {process.returncode}: {stderr.strip()[-200:]}")
    plan = json.loads((run / "run.json").read_text())
    planned = {job["key"] for job in plan["jobs"]} | {one["job"]["key"] for one in plan["controls"]}
    lost = planned - set(_keys(run.parent))
    return wrong + [f"{key} is lost" for key in lost]


def _keys(out: Path) -> list[str]:
    """The key of each result on disk; a torn line is none."""
    found = []
    for name in STORED:
        for file in out.glob(f"*/{name}"):
            for line in file.read_text(errors="replace").splitlines():
                with contextlib.suppress(ValueError):
                    found.append(json.loads(line)["key"])
    return found


def _living(session: int) -> list[str]:
    return [f"process {pid} stays" for pid in living(session)]


def _write_survey(folder: Path, command: str) -> None:
    folder.mkdir()
    engine = "sglang" if "SGLang" in command else "vllm"
    text = (ROOT / "scenarios" / f"{SURVEY}.yaml").read_text().partition("\nfaults:")[0]
    text = text.replace(f"name: {SURVEY}", f"name: {engine}-survey").replace("tags: [prefill]", "tags: [nightly]")
    (folder / f"{engine}-survey.yaml").write_text(text)


@contextlib.contextmanager
def _server(command: str) -> Iterator[str]:
    if not command.startswith("serve-check"):
        yield ""
        return
    with subprocess.Popen([sys.executable, str(SERVER)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        finally:
            process.kill()


@contextlib.contextmanager
def _small_disk(folder: Path, kibibytes: int) -> Iterator[str]:
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kibibytes}k", "tmpfs", str(folder)], check=True)
    try:
        yield f"{kibibytes} KiB of disk"
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def _grow(folder: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=64m", str(folder)], check=True)


@contextlib.contextmanager
def _no_disk() -> Iterator[str]:
    yield ""


def main() -> None:
    """Print one line for each trial, and the sum."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS))
    parser.add_argument("--commands", nargs="*", default=list(COMMANDS))
    given = parser.parse_args()
    rng = random.Random(given.seed)
    wrong = 0
    for number in range(given.trials):
        command = given.commands[number % len(given.commands)]
        kind = given.kinds[number // len(given.commands) % len(given.kinds)]
        with tempfile.TemporaryDirectory() as folder:
            found = trial(command, kind, rng, Path(folder))
        wrong += bool(found.wrong)
        print(("WRONG " if found.wrong else "") + str(found), flush=True)
    print(f"{given.trials} disturbed commands, {wrong} with something wrong afterwards")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
