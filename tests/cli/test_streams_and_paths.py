"""Streams that the shell closed lead to nothing, and a path that the system does not take is one
line.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.store.run_folder import RunStore
from tests.transcripts import Approved

ROOT = Path(__file__).parents[2]
LONG = "a/" * 3000
"""Longer than PATH_MAX."""
Cli = Callable[..., tuple[int, str, str]]


def shell(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a line of a shell, in which `$HARNESS` is the command."""
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "HARNESS": f"{sys.executable} -m harness.cli.main",
    }
    return subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environ, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_run_with_closed_streams_is_a_run_and_nothing_is_printed_into_its_files(
    scenarios: Path, tmp_path: Path, closed: str
) -> None:
    done = shell(
        f"$HARNESS run quantize --scenarios {scenarios} -n 1 --out runs {closed}", tmp_path
    )
    assert (done.returncode, done.stderr) == (0, "")
    (run,) = (tmp_path / "runs").iterdir()
    assert [result.verdict.value for result in RunStore.open(run).results()] == ["pass"] * 4
    for file in run.iterdir():
        assert "pass in" not in file.read_text(), file.name


@pytest.mark.parametrize("words", ["list", "--version", "report --out none"])
def test_an_output_that_cannot_be_written_is_one_line(words: str, tmp_path: Path) -> None:
    done = shell(f"$HARNESS {words} 1</dev/null", tmp_path)
    assert (
        done.returncode in (2, 3) and done.stderr.count("\n") == 1 and "raceback" not in done.stderr
    )


@pytest.mark.first(1)
@pytest.mark.parametrize(
    "words",
    [
        ("report", LONG),
        ("report", "--out", LONG),
        ("history", "--history", LONG),
        ("compare", LONG, LONG),
        ("coverage", LONG),
        ("merge", LONG, LONG),
        ("baseline", "show", "--dir", LONG),
        ("run", "--scenarios", LONG),
        ("run", f"{LONG}.yaml"),
        ("run", "quantize-kernel", "-n", "0", "--out", LONG),
        ("run", "quantize-kernel", "-n", "0", "--plugin", f"{LONG}.py"),
        ("run", "--resume", LONG),
        ("repro", "36540", "--script", f"{LONG}.py"),
        ("serve-check", "http://127.0.0.1:9", "--script", f"{LONG}.yaml"),
        ("bisect", "quantize-kernel", "--site", LONG),
        ("epochs", "--task", "gsm8k", "--model", f"engine:{LONG}"),
        ("epochs", "--task", "gsm8k", "--model", "engine:canary-mla", "--data-dir", LONG),
    ],
    ids=lambda words: " ".join("LONG" if "a/a/" in word else word for word in words),
)
def test_a_path_that_is_too_long_is_one_short_line(cli: Cli, words: tuple[str, ...]) -> None:
    code, _, err = cli(*words)
    assert code == 2 and err.count("\n") == 1, err[:300]
    assert "raceback" not in err and len(err) < 2100


def test_a_report_that_cannot_be_replaced_is_one_line(
    cli: Cli, scenarios: Path, approved: Approved
) -> None:
    assert cli("run", "quantize", "--scenarios", scenarios, "-n", 0, "--out", "runs")[0] == 0
    (run,) = Path("runs").iterdir()
    (run / "report.html").unlink()
    (run / "report.html").mkdir()
    code, _, err = cli("report", run)
    assert code == 2
    approved(err)
    assert not list(run.glob(".report*"))
