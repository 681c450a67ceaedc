"""`python -m trust.mutants --changes N`: its table, its reports and its place in the history."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.report.run_view import RunView
from harness.store.run_folder import RunStore
from tests.transcripts import Approved
from tests.waiting import HANG_SECONDS, wait_until
from trust.mutants.records import MutantResult, add_mutant, mutants_of, score, tables

Cli = Callable[..., tuple[int, str, str]]


def result(status: str, **more: str) -> MutantResult:
    given = {
        "name": "n",
        "file": "engine/batch.py",
        "function": "build",
        "operator": "wrong order",
        "change": "a -> b",
    }
    return MutantResult.model_validate(given | {"line": 3, "status": status} | more)


FOUND = [
    *[result("killed", by="reference")] * 7,
    result("killed", by="crash", file="ops/parts/split_plan.py"),
    result("survived", case="fuzz[seed=0,draw=3]", change="1 -> <b>2"),
    result("not reached"),
    result("not exercised"),
    *[result("equivalent", proof="no bit of an output moves")] * 4,
    result("equivalent"),
]


def test_the_score_leaves_out_exceptions_and_what_is_proved_equivalent(approved: Approved) -> None:
    found = score(FOUND)
    assert (found.killed, found.counted, found.exceptions, found.equivalent) == (7, 11, 1, 4)
    low, high = found.interval
    assert (round(found.rate, 3), round(low, 3), round(high, 3)) == (0.636, 0.354, 0.848)
    approved(found.statement)


def test_a_score_of_nothing_is_no_division_by_zero() -> None:
    assert (score([]).rate, score([]).interval, tables([])) == (0.0, (0.0, 1.0), [])


def test_the_tables_are_by_file_by_operator_by_oracle_and_what_is_left() -> None:
    by_file, by_operator, by_oracle, left, proofs = tables(FOUND)
    assert by_file[1][0] == (
        "engine/batch.py",
        "15",
        "7",
        "0",
        "1",
        "2",
        "1",
        "0",
        "4",
        "63.6%",
        "35% to 85%",
    )
    assert by_file[1][-1][:4] == by_operator[1][-1][:4] == ("all", "16", "7", "1")
    assert len(proofs[1]) == 4 and "not exercised" in {row[3] for row in left[1]}
    assert by_oracle[1] == [("reference", "7"), ("crash", "1")]
    assert left[1][0] == (
        "engine/batch.py:3 build",
        "wrong order",
        "1 -> <b>2",
        "survived",
        "fuzz[seed=0,draw=3]",
    )


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    options = {"seed": 9, "mutants": 15}
    made = RunStore.create(
        tmp_path, (), command="mla-harness mutants", options=options, is_selftest=True
    )
    for one in FOUND:
        add_mutant(made, one)
    return made


def test_the_report_of_a_run_says_where_its_mutants_are(store: RunStore) -> None:
    store.plan = store.plan.model_copy(update={"trials": {"count": 15}})
    assert RunView(store).headline == ("Mutants were tried: mutants.jsonl has them", "pass")


@pytest.mark.nightly
def test_the_page_gives_the_reason_of_a_survivor_and_names_reasons_that_are_no_longer_needed(
    store: RunStore, tmp_path: Path, approved: Approved
) -> None:
    reasons = tmp_path / "mutants.yaml"
    changes = {
        "1 -> <b>2": "it rounds",
        "2.1 0 -> 1": "its own",
        "0 -> 1": "the others",
        "a -> b": "old",
    }
    reasons.write_text(json.dumps({"engine/batch.py build": changes}), encoding="utf-8")
    add_mutant(store, result("survived", change="0 -> 1", name="engine/batch.py:build:2.1"))
    add_mutant(store, result("survived", change="0 -> 1", name="engine/batch.py:build:3.1"))
    add_mutant(store, result("error", change="2 -> 3", name="m", reason="no answer"))
    for number, one in enumerate(FOUND):
        add_mutant(store, one.model_copy(update={"name": f"engine/batch.py:build:{10 + number}.0"}))
    reading = f"m.REASONS = m.Path({str(reasons)!r})"
    code = (
        f"from trust.mutants import page as m; {reading};"
        f" print(m.document([m.RunStore.open(m.Path({str(store.path)!r}))]))"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True
    )
    assert "Seeds: 9. " in done.stdout
    rows = [
        line.split(" | ")[3:]
        for line in (
            done.stdout.partition("## Not killed")[2].partition("## Seen")[0].splitlines()[4:-2]
        )
    ]
    assert [row[2].removesuffix(" |") for row in rows if row[0] == "`0 -> 1`"] == [
        "its own",
        "the others",
    ]
    assert {(row[0], row[2].removesuffix(" |")) for row in rows} >= {
        ("`1 -> <b>2`", "it rounds"),
        ("`2 -> 3`", "no answer"),
    }
    approved(done.stderr)


@pytest.mark.nightly
def test_an_interrupt_leaves_a_run_that_goes_on(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "harness.cli.main",
        "mutants",
        "write-kv-kernel",
        "--changes",
        "400",
        "--seed",
        "4",
    ]
    command += ["-n", "2", "--out", str(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:

        def num_lines() -> int:
            return sum(
                path.read_text(encoding="utf-8").count("\n")
                for path in tmp_path.glob("*/mutants.jsonl")
            )

        wait_until(lambda: num_lines() >= 3, "3 mutants were tried", process)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=HANG_SECONDS)
    (run,) = tmp_path.iterdir()
    assert process.returncode == 130 and f"--resume {run}" in err
    store = RunStore.open(run)
    assert (
        3 <= len(mutants_of(store)) < 400
        and store.plan.trials is not None
        and store.plan.trials["workers"] == 2
    )
    assert (run / "report.html").exists()


@pytest.mark.nightly
def test_the_same_command_gives_the_same_table_twice(cli: Cli, tmp_path: Path) -> None:
    tables_of = []
    for name in ("one", "two"):
        command = ("mutants", "write-kv-kernel", "--changes", "25", "--seed", "4", "-n", "2")
        code, out, _ = cli(*command, "--out", str(tmp_path / name))
        assert code == 0
        assert "mutants killed by" in out
        (run,) = (tmp_path / name).iterdir()
        tables_of.append(mutants_of(RunStore.open(run)))
        assert (run / "report.html").exists()
    assert tables_of[0] == tables_of[1]
    assert len(tables_of[0]) == 25


@pytest.mark.nightly
def test_an_interrupted_run_tries_the_mutants_that_are_left(cli: Cli, tmp_path: Path) -> None:
    command = ("mutants", "write-kv-kernel", "--changes", "4", "--seed", "4", "-n", "1")
    assert cli(*command, "--out", str(tmp_path))[0] == 0
    (run,) = tmp_path.iterdir()
    whole = mutants_of(RunStore.open(run))
    lines = (run / "mutants.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (run / "mutants.jsonl").write_text("".join(lines[:2]), encoding="utf-8")
    code, out, _ = cli("mutants", "--resume", str(run))
    assert code == 0 and score(whole).statement in out
    assert mutants_of(RunStore.open(run)) == whole
    code, _, err = cli("mutants", "--resume", str(run), "--seed", "5")
    assert code == 2 and "leave out --seed" in err


def test_cases_that_run_no_code_under_test_are_refused(
    cli: Cli, tmp_path: Path, approved: Approved
) -> None:
    code, _, err = cli("mutants", "vllm-host-decode-plan", "--changes", "3", "--out", str(tmp_path))
    assert code == 2
    approved(err)
    assert not list(tmp_path.iterdir())
