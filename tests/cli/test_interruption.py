"""Ctrl-C, SIGTERM and kill -9: what was finished is kept, workers are gone, and --resume does the
rest.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.cli.run_and_report import work_and_report
from harness.report.run_view import RunView
from harness.store.run_folder import RunStore
from tests.waiting import HANG_SECONDS, wait_until

sys.path.insert(0, str(Path(__file__).parent))
from tests.conftest import StartProcess
from tests.transcripts import Approved, lines_with
from trust.disturbances.aftermath import children_of, workers_of

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "stub_run.py"
Start = Callable[..., tuple["subprocess.Popen[str]", Path]]


@pytest.fixture
def start(start_process: StartProcess) -> Start:
    """Start a stub run, or go on with one, as far as case `held`; returns it and its run
    directory.
    """

    def run_stub(
        out: Path, held: int, run: Path | None = None
    ) -> tuple[subprocess.Popen[str], Path]:
        command = [sys.executable, str(SCRIPT), str(out), str(held)] + ([str(run)] if run else [])
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        process = start_process(command, stderr=subprocess.PIPE, env=environ)
        assert process.stdout is not None
        return process, Path(process.stdout.readline().strip())

    return run_stub


def wait_for_results(
    process: subprocess.Popen[str], run: Path, count: int, name: str = "results.jsonl"
) -> None:
    file = run / name
    wait_until(
        lambda: file.exists() and file.read_text().count("\n") >= count,
        f"{count} results were there",
        process,
    )


def wait_until_no_workers(pid: int) -> None:
    wait_until(lambda: not children_of(pid), "its workers, and the process that forks them, ended")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_keeps_its_results_writes_reports_and_says_how_to_go_on(
    start: Start, tmp_path: Path, number: signal.Signals, approved: Approved
) -> None:
    process, run = start(tmp_path, 2)
    wait_for_results(process, run, 2)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 130, stderr
    assert f"mla-harness run --resume {run}" in stderr and "Traceback" not in stderr
    approved(lines_with(stdout, "not run: the"))
    summary = json.loads((run / "summary.json").read_text())
    assert summary["totals"]["pass"] >= 2 and summary["totals"]["not-run"] >= 1
    assert sum(summary["totals"].values()) == 8
    assert (run / "report.html").exists() and (run / "junit.xml").exists()
    wait_until_no_workers(process.pid)


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_run_leaves_no_spare_worker(
    start: Start, tmp_path: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_DOES", "exit")
    process, run = start(tmp_path, 1)
    wait_for_results(process, run, 1)
    process.send_signal(number)
    process.communicate(timeout=HANG_SECONDS)
    wait_until_no_workers(process.pid)


def test_a_killed_run_is_resumed_where_it_was(start: Start, tmp_path: Path) -> None:
    process, run = start(tmp_path, 2)
    wait_for_results(process, run, 2)
    # A worker that is about to start a program of its own is two processes for a moment.
    wait_until(lambda: len(workers_of(process.pid)) == 2, "its two workers were seen", process)
    process.kill()
    process.communicate(timeout=HANG_SECONDS)
    wait_until_no_workers(process.pid)
    before = (run / "results.jsonl").read_text().splitlines()
    (tmp_path / "go").touch()
    again, same = start(tmp_path, 2, run)
    _, stderr = again.communicate(timeout=HANG_SECONDS)
    assert again.returncode == 0, stderr
    assert same == run
    lines = [json.loads(line) for line in (run / "results.jsonl").read_text().splitlines()]
    assert [json.dumps(line) for line in lines[: len(before)]] == before, (
        "finished cases are not run again"
    )
    assert len({line["key"] for line in lines}) == len(lines) == 8
    assert json.loads((run / "summary.json").read_text())["totals"]["pass"] == 8


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_selftest_that_was_stopped_keeps_what_its_faults_gave_and_goes_on(
    start: Start,
    tmp_path: Path,
    number: signal.Signals,
    monkeypatch: pytest.MonkeyPatch,
    approved: Approved,
) -> None:
    monkeypatch.setenv("STUB_SELFTEST", "1")
    process, run = start(tmp_path, 4)
    wait_for_results(process, run, 2, "tried.jsonl")
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=HANG_SECONDS)
    wait_until_no_workers(process.pid)
    if number is signal.SIGINT:
        assert process.returncode == 130, stderr
        assert f"mla-harness selftest --resume {run}" in stderr and "Traceback" not in stderr
        assert (run / "report.html").exists()
        approved(lines_with(stdout, "faults caught: 0"))
    before = (run / "tried.jsonl").read_text().splitlines()
    (tmp_path / "go").touch()
    again, _ = start(tmp_path, 4, run)
    stdout, stderr = again.communicate(timeout=HANG_SECONDS)
    assert again.returncode == 0, stderr
    approved(lines_with(stdout, "faults caught: 6"))
    lines = (run / "tried.jsonl").read_text().splitlines()
    assert (
        lines[: len(before)] == before
        and len({json.loads(line)["key"] for line in lines}) == len(lines) == 6
    )
    assert json.loads((run / "summary.json").read_text())["totals"]["pass"] == 2


def test_ctrl_c_while_reports_are_written_says_how_to_go_on_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], approved: Approved
) -> None:
    def interrupted(view: RunView) -> int:
        raise KeyboardInterrupt

    store = RunStore.create(tmp_path, (), command="mla-harness run", options={})
    code = work_and_report(store, lambda: None, stop=lambda: None, report=interrupted)
    assert code == 130
    approved(capsys.readouterr().err)
