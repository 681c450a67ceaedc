"""`mla-harness selftest` ends in the exit codes of `run`: a regression, nothing ran, and the
harness failed differ.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.cli.selftest import finish
from harness.run.runner import WorkerPool
from harness.store.run_folder import RunStore
from tests.transcripts import Approved, lines_with

from .stub_run import planned_selftest  # type: ignore[import-not-found]

Cli = Callable[..., tuple[int, str, str]]
STUB = str(Path(__file__).parents[1] / "run")


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    """One worker for all selftests here."""
    with WorkerPool(1, execute="stub_execute:execute", environ={"PYTHONPATH": STUB}) as started:
        yield started


@pytest.mark.parametrize(
    ("clean", "faulty", "code"),
    [
        (["pass", "skip"], ["fail", "skip"], 0),
        (["pass"], ["skip"], 0),
        ([], ["fail"], 0),
        (["fail"], ["fail"], 1),
        (["pass"], ["pass"], 1),
        (["error"], ["pass"], 1),
        (["skip"], ["skip"], 2),
        ([], ["skip"], 2),
        (["error"], ["fail"], 3),
        (["pass"], ["error"], 3),
    ],
)
def test_the_exit_code_tells_a_regression_from_nothing_ran_and_from_our_own_fault(
    pool: WorkerPool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    clean: list[str],
    faulty: list[str],
    code: int,
) -> None:
    assert finish(planned_selftest(tmp_path, clean, faulty), pool, as_json=True) == code
    captured = capsys.readouterr()
    assert json.loads(captured.out)["ok"] is (code == 0)
    assert ("nothing ran" in captured.err) is (code == 2)


@pytest.mark.nightly
def test_workers_that_cannot_start_leave_reports_and_a_selftest_that_goes_on(
    pool: WorkerPool, tmp_path: Path, capsys: pytest.CaptureFixture[str], approved: Approved
) -> None:
    store = planned_selftest(tmp_path, ["pass"], ["fail"])
    with WorkerPool(1, execute="no_such_module:execute") as broken:
        assert finish(store, broken, as_json=False) == 3
    assert (store.path / "report.html").exists()
    approved(lines_with(capsys.readouterr().out, "faults caught: 0"))
    assert finish(RunStore.open(store.path), pool, as_json=False) == 0


def test_a_selftest_is_continued_by_selftest_and_by_nothing_else(
    cli: Cli, scenarios: Path, tmp_path: Path, approved: Approved
) -> None:
    assert cli("selftest", "--scenarios", scenarios, "-n", 1)[0] == 0
    (run,) = (tmp_path / "reports" / "runs").iterdir()
    for name in ("tried.jsonl", "faults.jsonl"):
        (run / name).unlink()
    again = (
        "a run of `selftest`; continue it with: mla-harness selftest --resume"
        f" reports/runs/{run.name}"
    )
    for command in ("run", "epochs"):
        code, out, err = cli(command, "--resume", "latest")
        assert (code, out) == (2, "") and again in err and err.count("\n") == 1
    code, out, _ = cli("selftest", "--resume", "latest", "-n", 1)
    assert code == 0
    approved(lines_with(out, "faults caught: 1"))
    code, _, err = cli("selftest", "--resume", "latest", "--faults-only")
    assert code == 2 and "leave out --faults-only" in err


def test_a_run_is_not_continued_by_selftest(cli: Cli, scenarios: Path, approved: Approved) -> None:
    cli("run", "quantize", "--scenarios", scenarios, "-n", 1)
    code, _, err = cli("selftest", "--resume", "latest")
    assert code == 2
    approved(err)
