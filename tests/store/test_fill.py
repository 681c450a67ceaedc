"""The script that shows how fast a history of a thousand runs is works, and refuses to spoil a real history."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def fill(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "tools" / "history_fill.py"), "--repeats", "1", *map(str, words)],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


def test_invented_runs_are_as_large_as_a_selftest_and_every_command_reads_them(tmp_path: Path) -> None:
    done = fill("--runs", 4, "--history", tmp_path / "new.sqlite", "--limit-seconds", 250)
    assert done.returncode == 0, done.stderr
    head, *timed = done.stdout.splitlines()
    assert head.startswith("4 runs of ") and int(head.split()[3]) >= 300
    assert len(timed) == 7 and all(" mla-harness " in line for line in timed)


def test_a_command_that_is_too_slow_fails_the_script_and_a_history_that_exists_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "mine.sqlite"
    assert fill("--runs", 2, "--history", path, "--limit-seconds", 0).returncode == 1
    before = path.read_bytes()
    assert fill("--history", path).returncode == 2
    assert path.read_bytes() == before
