"""Accuracy in the reports: the questions that differ, and the tables."""

from __future__ import annotations

import csv
import io
import re
import xml.etree.ElementTree as ET
from pathlib import Path

from harness.accuracy.answer_log import AccuracyRun, QuestionResult, RunHeader
from harness.accuracy.baselines import Baseline
from harness.accuracy.judge import judge
from harness.core.cases import Case, Job
from harness.core.cause_codes import Code
from harness.core.records import AccuracyRecord, CaseResult, Verdict
from harness.report import junit, markdown, page, table
from harness.report.console import console_for
from harness.report.run_view import RunView
from harness.report.terminal import print_run
from harness.store.run_folder import RunStore
from tests.transcripts import Approved, lines_with, page_text

CANARY = "a canary: it measures inference, not ability"
HOSTILE = '<script>alert(1)</script>\x1b[31m \u202e"'


def measured(*rows: str, baseline: str = "", **header: object) -> AccuracyRecord:
    """A judged run made of strings, one an epoch:

    `1` right, `0` wrong, `u`, `e`, `p`, `i`, `.` not asked.
    """
    questions = tuple(f"q{n:04}" for n in range(len(rows[0])))
    fields = {
        "task": "gsm_symbolic",
        "filter": "strict-match",
        "model": "canary-mla",
        "model_hash": "sha256:0",
        "seed": 0,
        "engine": "engine",
        "dtype": "float32",
        "num_epochs": len(rows),
        "questions": questions,
        "note": CANARY,
    }
    results = {
        (epoch, question): QuestionResult(
            epoch=epoch,
            question=question,
            position=0,
            correct=mark == "1",
            empty=mark == "e",
            unparsed=mark == "p",
            invalid_tokens=mark == "i",
            unanswered="HTTP 500 (5 attempts)" if mark == "u" else None,
        )
        for epoch, row in enumerate(rows, start=1)
        for question, mark in zip(questions, row, strict=True)
        if mark != "."
    }
    run = AccuracyRun(RunHeader.model_validate(fields | header), results, Path("accuracy.jsonl"))
    return judge(run, baseline=_baseline(questions, baseline, run) if baseline else None)


def _baseline(questions: tuple[str, ...], marks: str, run: AccuracyRun) -> Baseline:
    right = tuple(q for q, mark in zip(questions, marks, strict=True) if mark == "1")
    return Baseline(
        name="stored",
        task=run.header.task,
        filter=run.header.filter,
        model="canary-mla",
        model_hash="sha256:0",
        engine="engine",
        dtype="float32",
        accuracy=len(right) / len(questions),
        num_questions=len(questions),
        right=right,
        wrong=tuple(q for q in questions if q not in right),
    )


def stored(folder: Path, *records: AccuracyRecord) -> RunStore:
    cases = [
        Case(
            id=f"measured[n={n}]",
            scenario="measured",
            system="accuracy",
            params={"task": "gsm_symbolic"},
        )
        for n in range(len(records))
    ]
    store = RunStore.create(folder, [Job(key=case.id, case=case) for case in cases], command="x")
    for case, record in zip(cases, records, strict=True):
        store.add(
            CaseResult(
                key=case.id,
                id=case.id,
                scenario="measured",
                verdict=record.verdict,
                accuracy=record,
                reason=record.judgement.statement,
                looked_at={"accuracy": 1},
                cause=Code.POWERLESS if record.verdict is Verdict.SKIP else "",
            )
        )
    return store


def test_questions_that_differ_between_rows_are_listed_with_each_outcome() -> None:
    assert page.flipped(measured("1101", "10u1", "1.01", baseline="1111").grid) == [
        (2, "q0001", ["right", "right", "wrong", "not asked"]),
        (3, "q0002", ["right", "wrong", "unanswered", "wrong"]),
    ]
    assert page.flipped(measured("11", "11").grid) == []


def test_a_measurement_has_a_row_for_each_epoch_and_the_questions_that_differ(
    tmp_path: Path,
) -> None:
    text = page.render(
        RunView(
            stored(
                tmp_path,
                measured("1" * 20, "0" * 20, baseline="1" * 20),
                measured("1" * 20, "1" * 20),
            )
        )
    )
    assert "0.8389 to 1.0000" in text and "gsm_symbolic on canary-mla" in text
    assert text.count("20 questions that did not come out the same every time") == 1
    assert text.count('data-h="right">20 of 20<') == 4, "three epochs and the baseline"


def test_hostile_names_are_escaped_and_nothing_is_fetched(tmp_path: Path) -> None:
    record = measured("1u", "0e", model=HOSTILE, task=HOSTILE, note=HOSTILE, dtype=HOSTILE)
    store = stored(tmp_path, record)
    text = page.render(RunView(store))
    assert text.count("<script>") == 1 and text.count("<script") == 2, (
        "the page's own script and its data"
    )
    assert "&lt;script&gt;" in text and "url(" not in text
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text)
    ET.fromstring(junit.render(RunView(store)))
    stream = io.StringIO()
    print_run(console_for(stream), RunView(store))
    assert "\x1b" not in stream.getvalue()


def test_every_report_says_that_a_canary_measures_inference(
    tmp_path: Path, approved: Approved
) -> None:
    store = stored(tmp_path, measured("11", "11"), measured("11", "11", model="canary-hybrid"))
    stream = io.StringIO()
    print_run(console_for(stream), RunView(store), with_table=True)
    for text in (page.render(RunView(store)), junit.render(RunView(store)), stream.getvalue()):
        for name in ("canary-mla", "canary-hybrid"):
            assert f"{name} is a canary:" in text
    approved(lines_with(page_text(page.render(RunView(store))), "is a canary:"))
    assert table.render(RunView(store)).count(CANARY) == 4


def test_accuracy_that_is_as_it_should_be_is_printed_on_request_only(tmp_path: Path) -> None:
    stream = io.StringIO()
    print_run(console_for(stream), RunView(stored(tmp_path, measured("1" * 20, "1" * 20))))
    assert "epoch" not in stream.getvalue() and "1 pass in" in stream.getvalue()


def test_a_measurement_that_could_show_nothing_is_green_in_no_report(
    tmp_path: Path, approved: Approved
) -> None:
    view = RunView(stored(tmp_path, measured("0000", "0000")))
    assert view.headline == ("Nothing was shown: 1 measurement could have seen no loss", "skip")
    assert view.counts["pass"] == 0 and view.counts["skip"] == 1
    html, stream = page.render(view), io.StringIO()
    print_run(console_for(stream), view)
    assert '<section id="verdict" class="skip"' in html and 'class="badge pass"' not in html
    (case,) = ET.fromstring(junit.render(view)).iter("testcase")
    skipped = case.find("skipped")
    assert skipped is not None
    approved(skipped.get("message", ""))
    assert "1 skip in" in stream.getvalue()
    approved(lines_with(stream.getvalue(), "shown nothing"))
    summary = markdown.render(view)
    assert summary.startswith("## ❌") and "| skip |" in summary


def test_the_csv_has_a_row_for_each_epoch_and_none_for_what_was_not_asked(tmp_path: Path) -> None:
    text = table.render(RunView(stored(tmp_path, measured("1110", "1000", "...."))))
    rows = list(csv.DictReader(text.splitlines()))
    assert [(row["id"], row["epoch"], row["accuracy"], row["lost"]) for row in rows] == [
        ("measured[n=0]", "1", "0.75", ""),
        ("measured[n=0]", "2", "0.25", "2"),
        ("measured[n=0]", "3", "", "0"),
    ]
    assert list(rows[0]) == list(table.COLUMNS)


def test_junit_has_the_accuracy_of_each_epoch_as_properties(tmp_path: Path) -> None:
    root = ET.fromstring(
        junit.render(RunView(stored(tmp_path, measured("1110", "1111", baseline="1111"))))
    )
    (case,) = root.iter("testcase")
    found = {item.get("name"): item.get("value") for item in case.iter("property")}
    assert found["accuracy.epoch-1-accuracy"] == "0.7500" and found["accuracy.baseline"] == "1.0000"
    assert case[0].tag == "properties", "the schema wants them first"


def test_many_measured_cases_stay_below_two_megabytes(tmp_path: Path, approved: Approved) -> None:
    full = measured("10" * 659, "1101" * 329 + "00", "1" * 1318, baseline="1" * 1318)
    few = measured("1" * 16, "1" * 16)
    cases = [
        Case(
            id=f"measured[n={n}]",
            scenario="measured",
            system="accuracy",
            params={"task": "gsm_symbolic"},
        )
        for n in range(2000)
    ]
    store = RunStore.create(tmp_path, [Job(key=case.id, case=case) for case in cases], command="x")
    results = [
        CaseResult(
            key=case.id,
            id=case.id,
            scenario="measured",
            verdict=Verdict.PASS,
            looked_at={"accuracy": 1},
            accuracy=full if n < 3 else few if n < 60 else None,
        )
        for n, case in enumerate(cases)
    ]
    (store.path / "results.jsonl").write_text(
        "".join(result.model_dump_json() + "\n" for result in results)
    )
    text = page.render(RunView(store))
    assert len(text.encode()) < 2_000_000
    approved(lines_with(page_text(text), "and 20 more"))
