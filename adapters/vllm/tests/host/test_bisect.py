"""`bisect`: which interpreters, which selection, and what the table says of what they gave."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from harness.cli.bisect import _print
from harness.cli.main import exit_code_of
from harness.report.bisect import Column, exit_code_of_columns, first_bad, in_order, reasons, rows
from tests.transcripts import Approved
from tests.waiting import HANG_SECONDS, wait_until

FAKE = Path(__file__).parent / "fake"


def case(name: str, verdict: str, oracle: str = "finite", reason: str = "") -> dict[str, Any]:
    findings = (
        [{"oracle": oracle, "message": "NaN in live rows"}] if verdict in ("fail", "crash") else []
    )
    return {
        "id": name,
        "refs": ["vllm-project/vllm#1"],
        "verdict": verdict,
        "reason": reason,
        "findings": findings,
    }


def column(version: str, *cases: dict[str, Any], **more: Any) -> Column:
    return Column(
        "python",
        summary={
            "environment": {"engines": {"vllm": version}, "python": "3.12.0"},
            "cases": list(cases),
        },
        **more,
    )


def told(columns: list[Column]) -> list[str]:
    """The rows of the table, a line each, and the reasons below it."""
    lines = [f"{row.name}: {' | '.join(row.cells)} -> {row.answer}" for row in rows(columns)]
    return lines + reasons(columns)


def test_the_first_bad_version_is_named_among_those_that_were_judged(approved: Approved) -> None:
    for verdicts in (
        ("pass", "pass", "pass"),
        ("pass", "fail", "fail"),
        ("fail", "fail", "pass"),
        ("crash", "fail", "crash"),
        ("pass", "skip", "fail"),
        ("skip", "error", ""),
    ):
        approved(first_bad(("a", "b", "c"), verdicts), " ".join(verdicts))


def test_versions_are_ordered_by_number_and_not_by_text_or_command_line() -> None:
    columns = in_order([column("0.100.0"), column("0.22.1"), column("0.9.2")])
    assert [found.label for found in columns] == ["vLLM 0.9.2", "vLLM 0.22.1", "vLLM 0.100.0"]
    unknown = [column("0.24.0"), Column("other")]
    assert in_order(unknown) == unknown


def test_a_case_that_one_version_lacks_is_a_dash_and_an_oracle_is_named(approved: Approved) -> None:
    old = column("0.1.0", case("x", "pass"))
    approved(told([old, column("0.2.0", case("x", "fail"), case("y", "skip", reason="no GPU"))]))


def test_faults_stand_under_their_case_and_one_that_the_release_has_itself_is_told_apart(
    approved: Approved,
) -> None:
    skipped = {"case": "x", "fault": "f", "reason": "it has it", "cause": "as_released"}
    caught = {"case": "x", "fault": "f", "caught": True, "by": ["address", "replay"], "reason": ""}
    old = column("0.1.0", case("x", "fail"), case("y", "pass"), skipped_faults=[skipped])
    new = column("0.2.0", case("x", "pass"), case("y", "pass"), faults=[caught])
    approved(told([old, new]))


def test_a_fault_that_was_missed_is_told_from_one_with_another_blame(approved: Approved) -> None:
    def tried(version: str, *, seen: bool) -> Column:
        by = ["answers"] if seen else []
        fault = {
            "case": "x",
            "fault": "f",
            "seen": seen,
            "caught": False,
            "by": by,
            "reason": "it says why",
        }
        return column(version, case("x", "pass"), faults=[fault])

    columns = [tried("0.1.0", seen=True), tried("0.2.0", seen=False)]
    assert exit_code_of_columns(columns) == 1
    approved(told(columns))


@pytest.mark.parametrize(("width", "num_tables"), [(200, 1), (70, 2)])
def test_a_table_that_is_too_wide_is_parted_by_columns(width: int, num_tables: int) -> None:
    versions = [f"0.{minor}.0" for minor in range(21, 31)]
    shown = io.StringIO()
    _print(
        Console(file=shown, width=width),
        [column(version, case("x", "pass")) for version in versions],
    )
    words = shown.getvalue().split("vLLM 0.21.0:")[0].split()
    assert words.count("case") == num_tables
    assert [word for word in words if word[0] == "0"] == versions, "no version is folded"


@pytest.mark.parametrize(
    ("columns", "code"),
    [
        ([column("1.0", case("x", "pass"))], 0),
        ([column("1.0", case("x", "skip", reason="no GPU"))], 2),
        ([column("1.0", case("x", "pass")), column("2.0", case("x", "crash"))], 1),
        (
            [
                column(
                    "1.0",
                    faults=[
                        {"case": "x", "fault": "f", "caught": False, "by": [], "reason": "passed"}
                    ],
                )
            ],
            1,
        ),
        ([column("1.0", case("x", "error", reason="ImportError"))], 3),
        (
            [
                column("1.0", case("x", "fail")),
                Column("p", trouble="exit code 1: No module named typer"),
            ],
            3,
        ),
    ],
)
def test_the_exit_code_tells_bad_from_not_judged(columns: list[Column], code: int) -> None:
    assert exit_code_of_columns(columns) == code


def test_a_finding_is_told_once_and_every_reason_not_to_judge_is_told(approved: Approved) -> None:
    columns = [
        column("0.1.0", case("x", "fail"), case("y", "skip", reason="no GPU")),
        column("0.2.0", case("x", "fail")),
        Column("p", trouble="exit code 1: No module named typer"),
    ]
    approved(reasons(columns))


@pytest.mark.first(2)
def test_bad_input_is_refused_in_one_line_before_anything_runs(
    capsys: pytest.CaptureFixture[str], approved: Approved
) -> None:
    this = ["--python", sys.executable]
    for name, arguments in {
        "nothing": [],
        "no interpreter": ["--python", "/no/such/python"],
        "no folder": ["--site", "/no/such/folder"],
        "a folder and two interpreters": [*this, *this, "--site", str(FAKE)],
        "no scenario": ["no-such-scenario", *this],
    }.items():
        assert exit_code_of(["bisect", *arguments]) == 2
        approved(capsys.readouterr().err, name)


def interpreter(path: Path, script: str) -> Path:
    """An executable at `path` that answers as a Python interpreter and then runs `script`."""
    path.write_text(f'#!/bin/sh\n[ "$1" = -c ] && exec echo Python 3 11\n{script}\n')
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("parallel", ["1", pytest.param("2", marks=pytest.mark.nightly)])
def test_any_scenario_runs_under_each_interpreter_and_a_broken_one_is_a_column_with_its_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], parallel: str
) -> None:
    broken = interpreter(tmp_path / "python", "echo 'No module named typer' >&2\nexit 1")
    versions = ["--python", sys.executable, "--python", str(broken), "--parallel", parallel]
    code = exit_code_of(["bisect", "router-kernel", *versions, "-n", "1", "--json"])
    out, err = capsys.readouterr()
    table = json.loads(out)
    assert code == 3
    assert [row["cells"][1] for row in table["rows"]] == ["-"] * len(table["rows"])
    assert {row["cells"][0] for row in table["rows"]} == {"pass"}
    assert table["columns"][1]["trouble"].endswith("No module named typer")
    assert "router-kernel" in err


def test_an_interruption_ends_all_children_and_shows_the_versions_that_ended(
    tmp_path: Path,
) -> None:
    started = tmp_path / "started"
    slow = interpreter(tmp_path / "python", f"echo $$ $TMPDIR >> {started}\nexec sleep 3600")
    broken = interpreter(tmp_path / "broken", "exit 7")
    # Of two at a time the third begins once the first has ended.
    words = ["bisect", "router-kernel", "--parallel", "2"]
    words += [word for script in (broken, slow, slow) for word in ("--python", str(script))]
    process = subprocess.Popen(
        [sys.executable, "-m", "harness.cli.main", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    wait_until(
        lambda: started.exists() and len(started.read_text().splitlines()) == 2,
        "both slow ones began",
        process,
    )
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 130 and f"{broken}: exit code 7" in out.replace("\n", "")
    children = [line.split() for line in started.read_text().splitlines()]
    assert len({folder for _, folder in children}) == 2, "a lock on a GPU would be shared"
    for child, _ in children:
        with pytest.raises(ProcessLookupError):
            os.kill(int(child), 0)
