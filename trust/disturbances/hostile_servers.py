"""Ask servers that mean harm, and count tracebacks, controls on the terminal, hangs, and processes
that stay.

python -m trust.disturbances.hostile_servers prints a table: each kind of harm against `epochs` and
`serve-check`.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.waiting import HANG_SECONDS
from trust.disturbances.aftermath import (
    ROOT,
    environment,
    harness,
    left_behind,
    torn_files,
    wrong_words,
)

SERVER = ROOT / "tests" / "servers" / "hostile_server.py"
MOST_BYTES = 3 * 2**30
COMMANDS = {
    "epochs": ("--task", "gsm_symbolic", "--epochs", "1", "--limit", "1", "--timeout", "1"),
    "serve-check": ("--script", "lengths", "--timeout", "1"),
    "serve-check of streams": ("--script", "abort", "--timeout", "1"),
    "serve-check of drawn traces": (
        "--fuzz",
        "2",
        "--seed",
        "1",
        "--shrink-seconds",
        "5",
        "--timeout",
        "1",
    ),
}


@dataclass(frozen=True, slots=True)
class Asked:
    """What a command said about a server, and what is wrong with that or with what it left."""

    kind: str
    part: str
    command: str
    code: int
    seconds: float
    wrong: tuple[str, ...]
    said: str

    def __str__(self) -> str:
        told = f"{self.said[:160]!r}\t{'; '.join(self.wrong)}"
        return (
            f"{self.kind}\t{self.part}\t{self.command}\texit {self.code}\t{self.seconds:.1f}"
            f" s\t{told}"
        )


def asked(kind: str, part: str, command: str, folder: Path) -> Asked:
    """Run a command against a server of a kind, and look at what it printed and left."""
    server = subprocess.Popen(
        [sys.executable, str(SERVER), kind, part], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    try:
        url = f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
        out = folder / "runs"
        target = ("--model", f"server:{url}") if command == "epochs" else (url,)
        words = (command.partition(" ")[0], *target, *COMMANDS[command], "--out", str(out))
        started = time.monotonic()
        process = subprocess.Popen(
            harness(*words, folder=folder, limit=(f"--as={MOST_BYTES}",)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="surrogateescape",
            env=environment(folder),
            cwd=folder,
            start_new_session=True,
        )
        wrong = []
        try:
            stdout, stderr = process.communicate(timeout=HANG_SECONDS)
        except subprocess.TimeoutExpired:
            wrong.append("does not end")
            os.killpg(process.pid, signal.SIGKILL)
            stdout, stderr = process.communicate()
        seconds = time.monotonic() - started
    finally:
        server.kill()
        server.communicate()
    wrong += wrong_words(stdout + stderr) + left_behind(folder, out) + torn_files(out)
    if process.returncode not in (0, 1, 2, 3):
        wrong.append(f"exit code {process.returncode}")
    said = (stderr.strip() or stdout.strip()).splitlines()
    return Asked(
        kind, part, command, process.returncode, seconds, tuple(wrong), said[-1] if said else ""
    )


def main() -> None:
    """Print one line for each command, and the sum."""
    sys.path.insert(0, str(SERVER.parent))
    from hostile_server import KINDS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS))
    parser.add_argument("--parts", nargs="*", default=["models", "answers", "metrics"])
    parser.add_argument("--commands", nargs="*", default=list(COMMANDS))
    parser.add_argument("--at-once", type=int, default=4)
    given = parser.parse_args()
    wanted = [
        (kind, part, command)
        for kind in given.kinds
        for part in given.parts
        for command in given.commands
    ]
    wanted = [one for one in wanted if one[1:] != ("metrics", "epochs")]

    def ask(one: tuple[str, str, str]) -> Asked:
        with tempfile.TemporaryDirectory() as folder:
            found = asked(*one, Path(folder))
        print(("WRONG " if found.wrong else "") + str(found), flush=True)
        return found

    with ThreadPoolExecutor(given.at_once) as pool:
        wrong = sum(bool(found.wrong) for found in pool.map(ask, wanted))
    print(
        f"{len(wanted)} commands against hostile servers, {wrong} with a traceback, a control, a"
        " hang or a torn file"
    )
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
