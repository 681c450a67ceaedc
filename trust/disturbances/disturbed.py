"""Kill commands and their workers in the middle of their work, fill their disks, move their
folders, and go on.

python -m trust.disturbances.disturbed [--commands NAME...] [--kinds KIND...] [--seed N] prints a
line for each trial, and a table. Each blow is aimed by a clean run of the same command: it falls
once a part of the results is stored, on a process that works. After each trial no process of the
command lives, no file is torn, `report` and `compare` read the run, and `--resume` ends it with
each result once. `kill_runs.py` has clocks that jump. A small disk is a tmpfs, so it needs root.
SGLANG and VLLM name the folders of releases.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.waiting import HANG_SECONDS
from trust.disturbances import aftermath
from trust.disturbances.aftermath import ROOT, environment, harness
from trust.disturbances.disturbed_commands import COMMANDS, Command, prepare

AT_A_LIMIT = ("full disk", "full temporary folder", "file limit", "full output")
KINDS = ("kill", "killed worker", "killed fork server", *AT_A_LIMIT, "moved folder")
ON_DISK, SMALL_DISKS = ("full disk", "file limit"), ("full disk", "full temporary folder")
SERVER = ROOT / "tests" / "servers" / "sequence_server.py"
STORED = ("results.jsonl", "tried.jsonl", "mutants.jsonl", "accuracy.jsonl")
PROGRESS = re.compile(r"\d+ of \d+ traces pass$")
"""A line of progress, which a command prints where no terminal moves a line."""
DISK = "64m"


@dataclass(frozen=True, slots=True)
class Clean:
    """A command that nothing disturbed: what it takes and stores."""

    seconds: float
    code: int
    verdicts: dict[str, str]
    largest: int
    """Bytes of the largest file."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One disturbed command: what was done to it, whether it felt it, and what is wrong
    afterwards.
    """

    command: str
    kind: str
    moment: str
    code: int
    took_effect: bool
    stored: int
    results: int
    wrong: tuple[str, ...] = ()
    said: str = ""

    def __str__(self) -> str:
        effect = "" if self.took_effect else "no effect\t"
        counts = f"exit {self.code}\t{effect}{self.stored} stored\t{self.results} at the end"
        return f"{self.command}\t{self.kind}\t{self.moment}\t{counts}\t{'; '.join(self.wrong)}\t{self.said[:200]!r}"


def fits(command: Command, kind: str) -> bool:
    """Whether a blow can hit the command: one that has such a process, or writes to such a
    place.
    """
    if kind == "killed worker":
        return bool(command.worker)
    if kind in ("killed fork server", "full temporary folder"):
        return command.worker == "fork" or (
            bool(command.worker) and kind == "full temporary folder"
        )
    if kind == "moved folder":
        return bool(command.resume) and command.needs_out
    return command.writes or kind not in ON_DISK


def clean_run(name: str, prepared: Path) -> Clean:
    """Run a command to its end, in a folder that is removed."""
    with _place(name, prepared) as place, _server(name) as url:
        started = time.monotonic()
        process = place.start(COMMANDS[name].in_words(url, place.out, prepared))
        stdout, stderr = process.communicate(timeout=HANG_SECONDS)
        seconds = time.monotonic() - started
        if process.returncode not in COMMANDS[name].codes:
            raise SystemExit(
                f"{name}: exit {process.returncode} undisturbed: {stderr[-500:]}{stdout[-500:]}"
            )
        sizes = [file.stat().st_size for file in place.out.rglob("*") if file.is_file()]
        return Clean(seconds, process.returncode, place.verdicts(), max(sizes, default=0))


def trial(name: str, kind: str, rng: random.Random, prepared: Path, clean: Clean) -> Trial:
    """Disturb a command, look at what it left, go on with it, and look again."""
    command = COMMANDS[name]
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(_place(name, prepared))
        url = stack.enter_context(_server(name))
        full = {"full disk": place.out, "full temporary folder": place.temporary}.get(kind)
        if full is not None:
            stack.enter_context(_small_disk(full))
        limit = rng.randint(1024, max(2048, clean.largest // 2))
        process = place.start(
            command.in_words(url, place.out, prepared),
            limit=(f"--fsize={limit}",) if kind == "file limit" else (),
            stdout=(
                stack.enter_context(open("/dev/full", "w"))
                if kind == "full output"
                else subprocess.PIPE
            ),
        )
        moment = f"{limit} bytes a file" if kind == "file limit" else ""
        if kind not in ("file limit", "full output"):
            moment = _wait(process, place, rng, clean, kind)
            before = _lines(place)
            if full is not None:
                _fill(full)
            elif kind == "moved folder":
                _move(process, place)
            else:
                _kill(process, place, kind, command)
        else:
            before = []
        stdout, stderr = process.communicate(timeout=HANG_SECONDS)
        wrong = aftermath.wrong_words((stdout or "") + stderr)
        wrong += [f"process {pid} stays" for pid in aftermath.living(place.temporary)]
        kept, stored = _lines(place), place.verdicts()
        wrong += (
            [] if kind == "moved folder" or set(before) <= set(kept) else ["stored results changed"]
        )
        effect, more = _effect(kind, command, process.returncode, stored, clean, stderr)
        wrong += more
        if full is not None:
            wrong += _report_on_full(place, full)
            (full / "ballast").unlink()
        wrong += [] if kind.startswith("kill") else aftermath.torn_files(place.out)
        wrong += aftermath.left_behind(place.temporary, place.out)
        wrong += _gone_on(command, place, clean, crashed=kind.startswith("killed ") and effect)
        doubled = Counter(place.stored())
        # Of a measure, each stretch adds a result, and the last one counts.
        wrong += [
            f"{k} is stored twice"
            for k, count in doubled.items()
            if count > 1 and not k.startswith("epochs[")
        ]
        said = (stderr.strip().splitlines() or [""])[-1]
        return Trial(
            name,
            kind,
            moment,
            process.returncode,
            effect,
            len(stored),
            len(doubled),
            tuple(wrong),
            said,
        )


@dataclass(frozen=True, slots=True)
class Place:
    """The folders of one command: its own, that of its runs, and that of its temporary files."""

    folder: Path
    out: Path
    temporary: Path

    def start(
        self, words: list[str], limit: tuple[str, ...] = (), stdout: int | IO[str] = subprocess.PIPE
    ) -> subprocess.Popen[str]:
        """Start the command line with these words."""
        return subprocess.Popen(
            harness(*words, folder=self.folder, limit=limit),
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(self.temporary),
            cwd=self.folder,
            start_new_session=True,
        )

    def results(self) -> list[dict[str, str]]:
        """The results on disk; a torn line is none."""
        found = []
        for name in STORED:
            for file in sorted(self.out.glob(f"*/{name}")):
                for line in file.read_text(errors="replace").splitlines():
                    with contextlib.suppress(ValueError):
                        found.append(json.loads(line))
        return found

    def stored(self) -> list[str]:
        return [_key(result) for result in self.results() if _key(result)]

    def verdicts(self) -> dict[str, str]:
        """The key of each result -> its verdict, and why it is one of a process that was killed."""
        found = {}
        for result in self.results():
            verdict = str(result.get("verdict") or result.get("status") or result.get("correct"))
            is_killed = any(
                word in str(result.get("reason", "")) for word in ("SIGKILL", "exit code -9")
            )
            if _key(result):
                found[_key(result)] = verdict + (", killed" if is_killed else "")
        return found

    def run(self) -> Path | None:
        """The folder of the run, if it has begun."""
        return next((plan.parent for plan in self.out.glob("*/run.json")), None)


def _key(result: dict[str, str]) -> str:
    """What names a result: its key, its mutant, or its question and epoch; empty for a header."""
    question = f"{result['question']} {result['epoch']}" if "question" in result else ""
    return str(
        result.get("key") or (result.get("name") if "operator" in result else "") or question
    )


def _lines(place: Place) -> list[str]:
    """The whole lines of the stored results. Reading stops at the first torn one of a file."""
    found = []
    for name in STORED:
        for file in sorted(place.out.glob(f"*/{name}")):
            found += [
                f"{name} {line}" for line in file.read_text(errors="replace").split("\n")[:-1]
            ]
    return found


def _wait(
    process: subprocess.Popen[str], place: Place, rng: random.Random, clean: Clean, kind: str
) -> str:
    """Wait until a third of the results at most are stored, or a part of the time is over.

    Returns the moment.
    """
    count, share = rng.randint(1, max(1, len(clean.verdicts) // 3)), rng.uniform(0.25, 0.7)
    is_counted = len(clean.verdicts) > 1
    if kind == "kill" and rng.random() < 0.3:
        is_counted, share = False, rng.uniform(0.05, 0.9)
    started = time.monotonic()
    while process.poll() is None:
        if (
            len(place.stored()) >= count
            if is_counted
            else time.monotonic() - started >= share * clean.seconds
        ):
            break
        time.sleep(0.01)
    return f"{count} results" if is_counted else f"{share:.0%} of the time"


def _kill(process: subprocess.Popen[str], place: Place, kind: str, command: Command) -> None:
    """Send SIGKILL to the command, or to one of its processes that works."""
    victim: int | None = process.pid
    if kind != "kill":
        victim = None
        while victim is None and process.poll() is None:
            victim = _at_work(place, process.pid, kind, command.worker)
    if victim is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)


def _move(process: subprocess.Popen[str], place: Place) -> None:
    """Move the folder of the run elsewhere."""
    while place.run() is None and process.poll() is None:
        time.sleep(0.01)
    if run := place.run():
        run.rename(place.folder / "moved")


def _at_work(place: Place, parent: int, kind: str, worker: str) -> int | None:
    """A process of a kind that uses the CPU now, if there is one.

    It is stopped then, so that it cannot end first.
    """
    if kind == "killed fork server":
        return (
            next(iter(aftermath.fork_servers_of(parent)), None)
            if aftermath.workers_of(parent)
            else None
        )
    if worker == "fork":
        found = aftermath.workers_of(parent)
    elif worker == "trial":
        found = [
            p
            for p in aftermath.processes(place.temporary)
            if aftermath.runs_module(p, *aftermath.TRIALS)
        ]
        found = [pid for pid in found if aftermath.is_fork(pid)]
    else:
        pids = aftermath.processes(place.temporary)
        return next((pid for pid in pids if aftermath.runs_module(pid, *aftermath.ASKERS)), None)
    before = {pid: aftermath.cpu_ticks(pid) for pid in found}
    time.sleep(0.05)
    busy = [pid for pid in found if aftermath.cpu_ticks(pid) > before[pid] >= 0]
    if busy:
        with contextlib.suppress(ProcessLookupError):
            os.kill(busy[0], signal.SIGSTOP)
    return busy[0] if busy else None


def _effect(
    kind: str, command: Command, code: int, stored: dict[str, str], clean: Clean, stderr: str
) -> tuple[bool, list[str]]:
    """Whether the command felt the blow, and what is wrong with how it took it."""
    killed = {key for key, verdict in stored.items() if verdict.endswith("killed")}
    others = {key: verdict for key, verdict in stored.items() if key not in killed}
    wrong = [
        f"{key} is {verdict}"
        for key, verdict in others.items()
        if verdict != clean.verdicts.get(key, verdict)
    ]
    if kind == "kill":
        return code == -signal.SIGKILL, wrong
    lines = [line for line in stderr.splitlines() if line.strip() and not PROGRESS.match(line)]
    if kind == "moved folder":
        is_line = len(lines) == 1 and "moved during the run" in lines[0]
        wrong += (
            []
            if (code, is_line) == (3, True)
            else [f"exit {code}, {len(lines)} lines: {stderr.strip()[-300:]}"]
        )
        return True, wrong + [f"{key} is stored again" for key in stored]
    if kind in AT_A_LIMIT:
        if code == clean.code and "No space left" not in stderr and "File too large" not in stderr:
            return False, wrong
        if code not in (2, 3):
            wrong.append(f"exit code {code}")
        if len(lines) != 1 or not any(
            word in lines[0] for word in ("make room", "choose another", "File too large")
        ):
            wrong.append(f"{len(lines)} lines: {stderr.strip()[-300:]}")
        return True, wrong
    if command.worker == "child":
        if code not in command.codes_of_a_killed_worker or len(lines) != 1:
            wrong.append(f"exit {code}, {len(lines)} lines: {stderr.strip()[-300:]}")
        return "SIGKILL" in stderr, wrong
    if clean.verdicts and killed:
        lost = set(clean.verdicts) - set(stored)
        wrong += [f"{key} did not go on" for key in sorted(lost)]
        wrong += [f"exit code {code}"] if code not in command.codes_of_a_killed_worker else []
    return bool(killed) or not clean.verdicts, wrong


def _report_on_full(place: Place, full: Path) -> list[str]:
    """What is wrong with `report` while there is no room."""
    run = place.run()
    if run is None:
        return []
    done = subprocess.run(
        harness("report", str(run), folder=place.folder),
        capture_output=True,
        text=True,
        check=False,
        env=environment(place.temporary),
        cwd=place.folder,
    )
    is_line = done.returncode == 3 and done.stderr.count("\n") == 1 and "make room" in done.stderr
    if is_line or (done.returncode == 0 and not done.stderr):
        return aftermath.wrong_words(done.stderr)
    return [f"report on a full disk ends with {done.returncode}: {done.stderr.strip()[-300:]}"]


def _gone_on(command: Command, place: Place, clean: Clean, *, crashed: bool) -> list[str]:
    """What is wrong with the rest of a command: of its run, or of the same words once more."""
    run = place.run()
    if not command.resume or run is None:
        return []
    process = place.start([command.resume, "--resume", str(run), *command.more])
    stdout, stderr = process.communicate(timeout=HANG_SECONDS)
    wrong = aftermath.wrong_words(stdout + stderr) + aftermath.left_behind(
        place.temporary, place.out
    )
    wrong += aftermath.torn_files(place.out) if command.resume == "merge" else []
    allowed = (*command.codes, *command.codes_of_a_killed_worker) if crashed else command.codes
    if process.returncode not in allowed:
        wrong.append(f"--resume ends with {process.returncode}: {stderr.strip()[-200:]}")
    found = place.verdicts()
    wrong += [f"{key} is lost" for key in sorted(set(clean.verdicts) - set(found))]
    others = [
        key for key in found if found[key] != clean.verdicts.get(key, found[key]) and not crashed
    ]
    return wrong + [f"{key} is {found[key]} at the end" for key in others]


@contextlib.contextmanager
def _place(name: str, prepared: Path) -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="disturbed-") as folder:
        place = Place(Path(folder), Path(folder) / "runs", Path(folder) / "tmp")
        place.out.mkdir()
        place.temporary.mkdir()
        yield place


@contextlib.contextmanager
def _server(name: str) -> Iterator[str]:
    if "URL" not in " ".join(COMMANDS[name].words):
        yield ""
        return
    with subprocess.Popen(
        [sys.executable, str(SERVER), "roomy"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        finally:
            process.kill()


@contextlib.contextmanager
def _small_disk(folder: Path) -> Iterator[None]:
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def _fill(folder: Path) -> None:
    """Write to a disk until nothing more fits."""
    with (folder / "ballast").open("wb", buffering=0) as stream, contextlib.suppress(OSError):
        while stream.write(bytes(1 << 16)):
            pass


def main() -> None:
    """Print one line for each trial, and a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS))
    parser.add_argument("--commands", nargs="*", default=list(COMMANDS))
    parser.add_argument("--at-once", type=int, default=2)
    given = parser.parse_args()
    found: list[Trial] = []
    with (
        tempfile.TemporaryDirectory(prefix="prepared-") as folder,
        ThreadPoolExecutor(given.at_once) as pool,
    ):
        prepared = Path(folder)
        prepare(prepared, given.commands)

        def of(name: str) -> None:
            clean = clean_run(name, prepared)
            print(
                f"{name}\tclean\t{clean.seconds:.1f} s\texit {clean.code}\t{len(clean.verdicts)}"
                " results",
                flush=True,
            )
            for number in range(given.rounds):
                for kind in (kind for kind in given.kinds if fits(COMMANDS[name], kind)):
                    rng = random.Random(f"{given.seed} {number} {name} {kind}")
                    one = trial(name, kind, rng, prepared, clean)
                    found.append(one)
                    print(("WRONG " if one.wrong else "") + str(one), flush=True)

        list(pool.map(of, given.commands))
    print("| blow | commands | tried | took effect | wrong |\n| --- | --- | --- | --- | --- |")
    for kind in given.kinds:
        some = [one for one in found if one.kind == kind]
        felt, wrong = sum(one.took_effect for one in some), sum(bool(one.wrong) for one in some)
        print(f"| {kind} | {len({one.command for one in some})} | {len(some)} | {felt} | {wrong} |")
    sys.exit(any(one.wrong for one in found))


if __name__ == "__main__":
    main()
