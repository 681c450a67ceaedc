"""`run --fail-on`: the exit codes of CI."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.cli.output import console
from harness.cli.run import code_of
from harness.core.cases import Case, Job
from harness.core.records import CaseResult, FaultResult, Verdict
from harness.report.run_view import RunView
from harness.report.write import write_reports
from harness.store.history.entry import PastRuns, entry_of
from harness.store.run_folder import RunStore
from tests.transcripts import Approved, lines_with

Cli = Callable[..., tuple[int, str, str]]
LETTERS = {verdict.value[0]: verdict for verdict in Verdict}


def store_of(root: Path, verdicts: str, *, caught: str = "") -> RunStore:
    """A run of cases 0, 1, … that ended so, and of faults in them, caught (y) or not (n)."""
    jobs = [
        Job(key=str(i), case=Case(id=str(i), scenario="a", system="kernel", op="write_kv"))
        for i in range(len(verdicts))
    ]
    store = RunStore.create(root, jobs, command="mla-harness run")
    for job, letter in zip(jobs, verdicts, strict=True):
        store.add(CaseResult.of(job, LETTERS[letter]))
    for index, letter in enumerate(caught):
        store.add_fault(
            FaultResult(
                fault="f",
                scenario="a",
                case=str(index),
                ref="o/r#1",
                caught=letter == "y",
                by=(),
                blamed=(),
                expected_by=("finite",),
                expected_blame=(),
                seconds=0.0,
            )
        )
    return store


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        # what ended how before, and now: the codes of nothing, skip, error, new, skip and new,
        # error and new
        ("", "pp", (0, 0, 0, 0, 0, 0)),
        ("", "pf", (1, 1, 1, 1, 1, 1)),
        ("", "pc", (1, 1, 1, 1, 1, 1)),
        ("", "ps", (0, 1, 0, 0, 1, 0)),
        ("", "ss", (2, 1, 2, 2, 1, 2)),
        ("", "pe", (3, 3, 1, 3, 3, 1)),
        ("", "fe", (1, 1, 1, 1, 1, 1)),
        ("", "pk", (0, 0, 0, 0, 0, 0)),
        ("pf", "pf", (1, 1, 1, 0, 0, 0)),
        ("fp", "pf", (1, 1, 1, 1, 1, 1)),
        ("pf", "pc", (1, 1, 1, 0, 0, 0)),
        ("p", "pf", (1, 1, 1, 1, 1, 1)),
        ("pe", "pf", (1, 1, 1, 1, 1, 0)),
        ("ps", "pf", (1, 1, 1, 1, 0, 1)),
        ("ps", "ps", (0, 1, 0, 0, 0, 0)),
        ("pe", "pe", (3, 3, 1, 3, 3, 3)),
        ("pf", "fs", (1, 1, 1, 1, 1, 1)),
    ],
)
def test_each_code_is_as_documented(
    tmp_path: Path, before: str, now: str, expected: tuple[int, ...]
) -> None:
    accepted = entry_of(store_of(tmp_path, before)) if before else None
    store = store_of(tmp_path, now)
    ways = ("", "skip", "error", "new", "skip new", "error new")
    codes = [code_of(store, way.split(), PastRuns(tmp_path), accepted, console()) for way in ways]
    assert tuple(codes) == expected


def test_a_second_try_fails_as_the_first_did(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stores = [store_of(tmp_path, verdicts) for verdicts in ("ppp", "pff", "pff")]
    for store in stores:
        write_reports(RunView(store))
        code = code_of(store, ["new"], PastRuns(tmp_path), None, console())
    assert code == 1
    out = capsys.readouterr().out
    assert out.count(f"new since {stores[0].plan.run_id}") == out.count("2 of 2") == 2


def test_without_a_green_run_every_failure_is_new(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        write_reports(RunView(store := store_of(tmp_path, "pf")))
        assert code_of(store, ["new"], PastRuns(tmp_path), None, console()) == 1
    assert capsys.readouterr().out.count("no green run") == 2


def test_a_missed_fault_is_a_failure_and_an_accepted_one_is_not_new(tmp_path: Path) -> None:
    runs = PastRuns(tmp_path)
    assert code_of(store_of(tmp_path, "p", caught="y"), [], runs, None, console()) == 0
    store = store_of(tmp_path, "p", caught="n")
    assert code_of(store, ["new"], runs, None, console()) == 1
    assert (
        code_of(store_of(tmp_path, "p", caught="n"), ["new"], runs, entry_of(store), console()) == 0
    )


def test_a_run_fails_on_what_it_is_asked_to(
    cli: Cli, scenarios: Path, plugin: Callable[[str], Path], approved: Approved
) -> None:
    broken = plugin("return x.to(torch.float8_e4m3fn), torch.full((1,), float('nan'))")
    options = ("run", "quantize", "--scenarios", scenarios, "-n", 1)
    assert cli(*options, "--device", "cuda", "--fail-on", "skip")[0] == 1, (
        "this test is for machines without a GPU"
    )
    bad = (*options, "--plugin", broken, "--fail-on", "new")
    assert cli(*bad)[0] == 1
    code, out, _ = cli(*bad)
    assert code == 1
    approved(lines_with(out, "new as there"))
    accepted = sorted(Path("reports/runs").iterdir())[-1].name
    code, out, _ = cli(*bad, "--against", accepted)
    assert code == 0 and f"new since {accepted} (accepted run)" in out
    assert cli(*options, "--against", accepted)[0] == 2, "without --fail-on new it would do nothing"
    code, _, err = cli(*bad, "--history", "none")
    assert code == 2
    approved(err)
    code, _, err = cli(*options, "--fail-on", "skip,error")
    assert code == 2 and len(err.splitlines()) == 1
    approved(err)
    assert cli("run", "--resume", "latest", "--fail-on", "error")[0] == 1, "the run itself failed"
