"""Accuracy in the reports: the chart, the grid of questions, the tables, and what a browser makes of the page."""

from __future__ import annotations

import csv
import io
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.accuracy.answer_log import AccuracyRun, QuestionResult, RunHeader
from harness.accuracy.baselines import Baseline
from harness.accuracy.judge import judge
from harness.core.cases import Case, Job
from harness.core.records import AccuracyRecord, CaseResult, Verdict
from harness.report import junit, page, table
from harness.report.accuracy_chart import COLUMNS, chart, grid
from harness.report.console import console_for
from harness.report.run_view import RunView
from harness.report.terminal import print_run
from harness.store.run_folder import RunStore

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CANARY = "a canary: it measures inference, not ability"
HOSTILE = '<script>alert(1)</script>\x1b[31m \u202e"'


def measured(*rows: str, baseline: str = "", **header: object) -> AccuracyRecord:
    """A judged run made of strings, one an epoch: `1` right, `0` wrong, `u`, `e`, `p`, `i`, `.` not asked."""
    questions = tuple(f"q{n:04}" for n in range(len(rows[0])))
    fields = {
        "task": "gsm_symbolic", "filter": "strict-match", "model": "canary-mla", "model_hash": "sha256:0", "seed": 0,
        "engine": "engine", "dtype": "float32", "num_epochs": len(rows), "questions": questions, "note": CANARY,
    }  # fmt: skip
    results = {
        (epoch, question): QuestionResult(
            epoch=epoch, question=question, position=0, correct=mark == "1", empty=mark == "e", unparsed=mark == "p",
            invalid_tokens=mark == "i", unanswered="HTTP 500 (5 attempts)" if mark == "u" else None,
        )
        for epoch, row in enumerate(rows, start=1)
        for question, mark in zip(questions, row, strict=True)
        if mark != "."
    }  # fmt: skip
    run = AccuracyRun(RunHeader.model_validate(fields | header), results, Path("accuracy.jsonl"))
    return judge(run, baseline=_baseline(questions, baseline, run) if baseline else None)


def _baseline(questions: tuple[str, ...], marks: str, run: AccuracyRun) -> Baseline:
    right = tuple(q for q, mark in zip(questions, marks, strict=True) if mark == "1")
    return Baseline(
        name="stored", task=run.header.task, filter=run.header.filter, model="canary-mla", model_hash="sha256:0",
        engine="engine", dtype="float32", accuracy=len(right) / len(questions), num_questions=len(questions),
        right=right, wrong=tuple(q for q in questions if q not in right),
    )  # fmt: skip


def stored(folder: Path, *records: AccuracyRecord) -> RunStore:
    cases = [
        Case(id=f"measured[n={n}]", scenario="measured", system="accuracy", params={"task": "gsm_symbolic"})
        for n in range(len(records))
    ]
    store = RunStore.create(folder, [Job(key=case.id, case=case) for case in cases], command="x")
    for case, record in zip(cases, records, strict=True):
        store.add(
            CaseResult(
                key=case.id, id=case.id, scenario="measured", verdict=record.verdict, accuracy=record,
                reason=record.judgement.statement, looked_at={"accuracy": 1},
            )
        )  # fmt: skip
    return store


def test_higher_accuracy_is_drawn_higher_and_the_interval_spans_its_point() -> None:
    found = chart(measured("1" * 90 + "0" * 10, "1" * 70 + "0" * 30, "1" + "0" * 99, baseline="1" * 100))
    assert found is not None and found.band is not None
    heights = [point.y for point in found.points]
    assert found.band.y < heights[0] < heights[1] < heights[2]
    assert all(point.high < point.y < point.low for point in found.points)
    assert all(0 <= value <= found.height for point in found.points for value in (point.high, point.low))
    assert [point.text for point in found.points] == ["0.9000", "0.7000", "0.0100"]
    assert not found.is_cut and "epoch 3: 0.0100, interval 0.0018 to 0.0545" in found.description


def test_an_axis_that_does_not_begin_at_zero_is_said_to_be_cut() -> None:
    found = chart(measured("1" * 1000, "1" * 1000))
    assert found is not None and found.is_cut and found.ticks[0][1] == "0.99"


def test_epochs_not_asked_are_not_drawn_as_zero() -> None:
    found = chart(measured("1" * 10, "1" * 4 + "." * 6, "." * 10))
    assert found is not None and [point.epoch for point in found.points] == [1, 2]
    assert chart(measured("." * 10)) is None


def test_each_cell_of_the_grid_is_drawn_once_in_its_kind() -> None:
    rows = ("1" * 200, "1" * 150 + "0p" * 25, "ui" * 100)
    found = grid(measured(*rows, baseline="1" * 200).grid)
    assert found is not None
    lengths = {css: sum(map(int, re.findall(r"h(\d+)", path))) // 10 for css, path in found.strips}
    assert lengths == {"right": 550, "wrong": 25, "unparsed": 25, "invalid": 100, "unanswered": 100}
    assert {css: count for css, _, count in found.legend} == lengths
    assert found.num_flipped == 200 and found.rows == ("baseline", "epoch 1", "epoch 2", "epoch 3")
    ends = [int(x) + int(h) for _, path in found.strips for x, h in re.findall(r"M(\d+) \d+h(\d+)", path)]
    assert max(ends) == found.width == COLUMNS * 10


def test_a_flawless_grid_is_one_stroke_a_row_and_lists_no_question() -> None:
    found = grid(measured("1" * 100, "1" * 100).grid)
    assert found is not None
    assert [css for css, _ in found.strips] == ["right"] and found.strips[0][1].count("M") == 2
    assert found.flipped == ()


class Parsed(HTMLParser):
    """Tags with their attributes, and the text of titles and descriptions by id."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_every_picture_has_a_title_and_a_description_and_a_table_beside_it(tmp_path: Path) -> None:
    text = page.render(
        RunView(stored(tmp_path, measured("1" * 20, "0" * 20, baseline="1" * 20), measured("1" * 20, "1" * 20)))
    )
    parsed = Parsed()
    parsed.feed(text)
    ids = [attributes["id"] for _, attributes in parsed.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    labelled = "aria-labelledby"
    pictures = [found for tag, found in parsed.tags if tag == "svg" and (found.get(labelled) or "").startswith("acc")]
    assert len(pictures) == 4
    for attributes in pictures:
        assert attributes["role"] == "img"
        assert set((attributes[labelled] or "").split()) <= set(ids)
    assert "0.8389 to 1.0000" in text and "gsm_symbolic on canary-mla" in text
    assert "20 questions that did not come out the same every time" in text


def test_hostile_names_are_escaped_and_nothing_is_fetched(tmp_path: Path) -> None:
    record = measured("1u", "0e", model=HOSTILE, task=HOSTILE, note=HOSTILE, dtype=HOSTILE)
    store = stored(tmp_path, record)
    text = page.render(RunView(store))
    assert text.count("<script>") == 1 and text.count("<script") == 2, "the page's own script and its data"
    assert "&lt;script&gt;" in text and "url(" not in text
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text)
    ET.fromstring(junit.render(RunView(store)))
    stream = io.StringIO()
    print_run(console_for(stream), RunView(store))
    assert "\x1b" not in stream.getvalue()


def test_every_report_says_that_a_canary_measures_inference(tmp_path: Path) -> None:
    store = stored(tmp_path, measured("11", "11"), measured("11", "11", model="canary-hybrid"))
    stream = io.StringIO()
    print_run(console_for(stream), RunView(store), with_table=True)
    for text in (page.render(RunView(store)), junit.render(RunView(store)), stream.getvalue()):
        for name in ("canary-mla", "canary-hybrid"):
            assert f"{name} is a canary: it measures inference, not ability." in text
    assert table.render(RunView(store)).count(CANARY) == 4


def test_accuracy_that_is_as_it_should_be_is_printed_on_request_only(tmp_path: Path) -> None:
    stream = io.StringIO()
    print_run(console_for(stream), RunView(stored(tmp_path, measured("11", "11"))))
    assert len(stream.getvalue().splitlines()) == 2


def test_the_csv_has_a_row_for_each_epoch_and_none_for_what_was_not_asked(tmp_path: Path) -> None:
    text = table.render(RunView(stored(tmp_path, measured("1110", "1000", "...."))))
    rows = list(csv.DictReader(text.splitlines()))
    assert [(row["id"], row["epoch"], row["accuracy"], row["lost"]) for row in rows] == [
        ("measured[n=0]", "1", "0.75", ""), ("measured[n=0]", "2", "0.25", "2"), ("measured[n=0]", "3", "", "0"),
    ]  # fmt: skip
    assert list(rows[0]) == list(table.COLUMNS)


def test_junit_has_the_accuracy_of_each_epoch_as_properties(tmp_path: Path) -> None:
    root = ET.fromstring(junit.render(RunView(stored(tmp_path, measured("1110", "1111", baseline="1111")))))
    (case,) = root.iter("testcase")
    found = {item.get("name"): item.get("value") for item in case.iter("property")}
    assert found["accuracy.epoch-1-accuracy"] == "0.7500" and found["accuracy.baseline"] == "1.0000"
    assert case[0].tag == "properties", "the schema wants them first"


def test_many_cases_with_pictures_stay_below_two_megabytes(tmp_path: Path) -> None:
    full = measured("10" * 659, "1101" * 329 + "00", "1" * 1318, baseline="1" * 1318)
    few = measured("1" * 16, "1" * 16)
    cases = [
        Case(id=f"measured[n={n}]", scenario="measured", system="accuracy", params={"task": "gsm_symbolic"})
        for n in range(2000)
    ]
    store = RunStore.create(tmp_path, [Job(key=case.id, case=case) for case in cases], command="x")
    results = [
        CaseResult(
            key=case.id, id=case.id, scenario="measured", verdict=Verdict.PASS, looked_at={"accuracy": 1},
            accuracy=full if n < 3 else few if n < 60 else None,
        )
        for n, case in enumerate(cases)
    ]  # fmt: skip
    (store.path / "results.jsonl").write_text("".join(result.model_dump_json() + "\n" for result in results))
    text = page.render(RunView(store))
    assert len(text.encode()) < 2_000_000
    assert "and 20 more measurements of accuracy in results.csv" in text


PROBE = """() => Array.from(document.querySelectorAll(".acc svg")).filter((picture) => {
  const box = picture.getBoundingClientRect(), parts = picture.querySelectorAll("text, path, circle");
  return !box.width || Array.from(parts).some((part) => {
    const inner = part.getBoundingClientRect();
    return inner.left < box.left - 3 || inner.right > box.right + 3 || inner.top < box.top - 3 ||
      inner.bottom > box.bottom + 3;
  });
}).map((picture) => picture.outerHTML.slice(0, 200))"""


@pytest.mark.parametrize("width", [390, 1240])
def test_a_browser_draws_the_pictures_inside_their_boxes_and_the_page_inside_the_window(
    browser: Browser, tmp_path: Path, width: int
) -> None:
    rows = ("1" * 1200 + "0" * 119, "1" * 900 + "0p" * 200 + "u" * 19, "1" + "0" * 1318)
    records = (measured(*rows, baseline="1" * 1319), measured("1" * 16, "1" * 16), measured(*["1" * 30] * 12))
    (tmp_path / "page.html").write_text(page.render(RunView(stored(tmp_path / "runs", *records))), encoding="utf-8")
    context = browser.new_context(viewport={"width": width, "height": 2000})
    tab = context.new_page()
    tab.goto((tmp_path / "page.html").as_uri())
    assert tab.locator(".acc svg").count() == 6 and tab.evaluate(PROBE) == []
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    context.close()
