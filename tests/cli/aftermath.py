"""What a command left that was killed, starved of disk, or given harm to read: processes, files, runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONTROLS = ("\x1b", "\x00", "\x07", "\u202e", "Traceback", "traceback in", "--help)")
TAG = "<img src=x"
"""What a hostile text would be on a page that does not escape it."""


def harness(*words: str, folder: Path, environ: dict[str, str] | None = None, limit: tuple[str, ...] = ()) -> list[str]:
    """The command line in a process, perhaps under `prlimit`."""
    return [*(("prlimit", *limit) if limit else ()), sys.executable, "-m", "harness.cli.main", *words]


def environment(folder: Path) -> dict[str, str]:
    """The environment of such a process, with its temporary files in `folder`."""
    return os.environ | {
        "PYTHONPATH": str(ROOT),
        "TMPDIR": str(folder),
        "OMP_NUM_THREADS": "1",
        "MLA_HARNESS_HISTORY": "none",
    }


def call(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end."""
    command = harness(*words, folder=folder)
    return subprocess.run(command, capture_output=True, text=True, env=environment(folder), check=False, cwd=folder)


def wrong_words(text: str) -> list[str]:
    """The marks of a traceback, of control characters or of a refused command in what was printed."""
    return [f"prints {mark!r}" for mark in CONTROLS if mark in text]


def left_behind(session: int, out: Path) -> list[str]:
    """What is wrong with what a command left below `out`: its session lives, a file is torn, a run cannot be read."""
    wrong = [f"process {pid} stays" for pid in living(session)]
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


def living(session: int) -> list[int]:
    """The processes of a session that still live after some seconds."""
    found: list[int] = []
    for _ in range(50):
        found = [int(stat.parent.name) for stat in Path("/proc").glob("[0-9]*/stat") if _is_of(stat, session)]
        if not found:
            break
        time.sleep(0.1)
    return found


def _is_of(stat: Path, session: int) -> bool:
    try:
        state, _, _, own, *_ = stat.read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return int(own) == session and state != "Z"
