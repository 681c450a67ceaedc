"""What a command left that was killed, starved of disk, or given harm to read: processes, files,
runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from tests.waiting import HANG_SECONDS, POLL_SECONDS

ROOT = Path(__file__).parents[2]
CONTROLS = (
    "\x1b",
    "\x00",
    "\x07",
    "\u202e",
    "Traceback",
    "traceback in",
    "Exception ignored",
    "--help)",
)
TAG = "<img src=x"
"""What a hostile text would be on a page that does not escape it."""
FORK_SERVER, WORKER = b"harness.run.fork_server", b"harness.run.worker"
TRIALS = (b"trust.mutants.trials", b"trust.arrays.condition_trials")
ASKERS = (b"harness.diagnose.traces", b"harness.run.epochs")


def harness(
    *words: str, folder: Path, environ: dict[str, str] | None = None, limit: tuple[str, ...] = ()
) -> list[str]:
    """The command line in a process, perhaps under `prlimit`."""
    return [
        *(("prlimit", *limit) if limit else ()),
        sys.executable,
        "-m",
        "harness.cli.main",
        *words,
    ]


def environment(folder: Path) -> dict[str, str]:
    """The environment of such a process, with its temporary files in `folder`."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"} | {
        "PYTHONPATH": str(ROOT),
        "TMPDIR": str(folder),
        "OMP_NUM_THREADS": "1",
        "MLA_HARNESS_HISTORY": "none",
    }


def call(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end."""
    command = harness(*words, folder=folder)
    return subprocess.run(
        command, capture_output=True, text=True, env=environment(folder), check=False, cwd=folder
    )


def wrong_words(text: str) -> list[str]:
    """The marks of a traceback, of control characters or of a refused command in what was
    printed.
    """
    return [f"prints {mark!r}" for mark in CONTROLS if mark in text]


def left_behind(folder: Path, out: Path) -> list[str]:
    """What is wrong with what a command left below `out`: its processes live, a file is torn, a run
    cannot be read.

    `folder` is that of the command's temporary files.
    """
    wrong = [f"process {pid} stays" for pid in living(folder)]
    for plan in out.glob("*/run.json"):
        run = plan.parent
        for words in (["report", str(run)], ["compare", str(run), str(run)]):
            done = call(*words, folder=out)
            if done.returncode not in (0, 1, 2) or "Traceback" in done.stderr:
                wrong.append(f"{words[0]} fails: {done.stderr.strip()[-200:]}")
        page = run / "report.html"
        if page.exists() and TAG in page.read_text(encoding="utf-8"):
            wrong.append("the page has a tag of the server")
        for file in run.glob("*.json"):
            json.loads(file.read_text(encoding="utf-8"))
    return wrong


def torn_files(out: Path) -> list[str]:
    """Files that were begun and never renamed."""
    return [f"{file.name} is a part of a file" for file in out.rglob(".*") if file.is_file()]


def living(folder: Path) -> list[int]:
    """The processes with temporary files in `folder` that do not end.

    Four may end one after another, and each frees its memory first.
    """
    begun = time.monotonic()
    while (found := processes(folder)) and time.monotonic() - begun < HANG_SECONDS:
        time.sleep(POLL_SECONDS)
    return found


def processes(folder: Path) -> list[int]:
    """The processes that a command started, and itself: a session of its own does not hide one, nor
    does a fork.
    """
    mark, found = f"TMPDIR={folder}".encode(), []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if (
                mark in environ.read_bytes().split(b"\0")
                and _state(int(environ.parent.name)) != "Z"
            ):
                found.append(int(environ.parent.name))
    return found


def workers_of(parent: int) -> list[int]:
    """The processes that run cases for `parent`, forked or not, which their command line names."""
    return [pid for pid in _named(parent) if WORKER in _words(pid) or is_fork(pid)]


def fork_servers_of(parent: int) -> list[int]:
    """The processes that fork workers for `parent`."""
    return [pid for pid in _named(parent) if FORK_SERVER in _words(pid) and not is_fork(pid)]


def children_of(parent: int) -> list[int]:
    """The workers of `parent` and the processes that fork them."""
    return workers_of(parent) + fork_servers_of(parent)


def is_fork(pid: int) -> bool:
    """Whether a process is a fork of one of the harness: it has the command line of its parent."""
    with contextlib.suppress(OSError, IndexError):
        return bool(_words(pid)) and _words(pid) == _words(int(_stat(pid)[1]))
    return False


def runs_module(pid: int, *modules: bytes) -> bool:
    """Whether the command line of a process names one of the modules."""
    return not set(modules).isdisjoint(_words(pid))


def cpu_ticks(pid: int) -> int:
    """The CPU time that a process and its children have used, in ticks; -1 once one is gone."""
    with contextlib.suppress(OSError, IndexError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return sum(sum(map(int, _stat(one)[11:13])) for one in (pid, *map(int, children)))
    return -1


def _named(parent: int) -> list[int]:
    pids = [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]
    return [pid for pid in pids if str(parent).encode() in _words(pid) and _state(pid) != "Z"]


def _words(pid: int) -> list[bytes]:
    with contextlib.suppress(OSError):
        return list(filter(None, Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")))
    return []


def _stat(pid: int) -> list[str]:
    """The fields of a process from its state on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _state(pid: int) -> str:
    with contextlib.suppress(OSError, IndexError):
        return _stat(pid)[0]
    return "Z"
