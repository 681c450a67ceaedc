"""Text from kernels, models and servers is shown as text, by every report and every command that
prints it.
"""

from __future__ import annotations

import csv
import io
import json
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import pytest

from harness.accuracy.answer_log import AccuracyRun, QuestionResult, RunHeader
from harness.accuracy.judge import judge
from harness.cli.main import exit_code_of
from harness.core.cases import Case, Job
from harness.core.findings import Finding
from harness.core.records import AccuracyRecord, CaseResult, Verdict
from harness.ops.mla_decode.params import MlaDecodeParams
from harness.report.run_view import RunView
from harness.report.write import write_reports
from harness.store.run_folder import RunStore

TEXTS = {
    "a script": "<script>alert(1)</script>",
    "the end of a script": "</script><img src=x onerror=alert(1)>",
    "an attribute": "\" onmouseover=alert(1) x='",
    "a comment": "<!-- --!> <![CDATA[ ]]>",
    "an entity": "&lt;b&gt; &#60;b&#62;",
    "a colour": "\x1b[31mred",
    "a title": "\x1b]0;owned\x07",
    "a link": "\x1b]8;;http://x\x1b\\click\x1b]8;;\x1b\\",
    "a cleared screen": "\x1b[2J\x1b[H",
    "a C1 control": "\x9b31m",
    "a return": "good\rbad",
    "a NUL": "a\x00b",
    "the other direction": "\u202egnp.exe",
    "a lone surrogate": "\ud800",
    "rich's markup": "[bold red]x[/bold red] [link=http://x]y[/]",
    "a formula": '=HYPERLINK("http://x")',
    "a sum": "+1+1",
    "a difference": "-1+1",
    "a function": "@SUM(A1)",
    "a formula after a tab": "\t=1+1",
    "a row of a table": "a | b \n| --- |",
    "Markdown": "![i](http://x) `code` # title",
    "a template": "{{ 7 * 7 }} {% raw %} ${x} %(x)s",
}
PLACES = ("case id", "finding", "reason", "log", "model", "server")
FORBIDDEN = ("\x1b", "\x9b", "\x00", "\x07", "\u202e", "\ud800")


def stored(root: Path, text: str) -> RunStore:
    """A run of a case for each of the PLACES, with `text` there."""
    cases, results = [], []
    for place in PLACES:
        name = f"decode[{text if place == 'case id' else place}]"
        params = MlaDecodeParams(kernel="tiled")
        cases.append(
            Case(id=name, scenario="decode", system="kernel", op="mla_decode", params=params)
        )
        fields: dict[str, object] = {
            "key": name,
            "id": name,
            "scenario": "decode",
            "verdict": Verdict.FAIL,
        }
        if place == "finding":
            fields["findings"] = (Finding(oracle="finite", tensor=text, where=text, message=text),)
        elif place in ("model", "server"):
            fields["accuracy"] = _record(*((text, "no reply") if place == "model" else ("m", text)))
        elif place != "case id":
            fields[place] = text
        results.append(CaseResult.model_validate({"looked_at": {"finite": 1}, **fields}))
    jobs = [Job(key=case.id, case=case) for case in cases]
    store = RunStore.create(root, jobs, command=f"mla-harness run {text}", options={})
    for result in results:
        store.add(CaseResult.model_validate(json.loads(json.dumps(result.model_dump(mode="json")))))
    return store


def _record(model: str, reply: str) -> AccuracyRecord:
    """Two epochs of two questions.

    The server named the model, and `reply` is its answer to one question.
    """
    fields = {
        "task": "t",
        "filter": "f",
        "model": model,
        "model_hash": "h",
        "engine": "e",
        "dtype": "d",
    }
    header = RunHeader.model_validate(
        fields | {"seed": 0, "num_epochs": 2, "questions": ("q0", "q1"), "note": model}
    )
    results = {
        (epoch, name): QuestionResult(
            epoch=epoch,
            question=name,
            position=0,
            correct=name == "q0",
            unanswered=reply if name == "q1" else None,
        )
        for epoch in (1, 2)
        for name in header.questions
    }
    return judge(AccuracyRun(header, results, Path("accuracy.jsonl")))


class Page(HTMLParser):
    """The tags and the handlers that a browser would see."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.handlers: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.handlers += [name for name, _ in attributes if name.startswith("on")]


def outline(html: str) -> tuple[int, int, list[str]]:
    page = Page()
    page.feed(html)
    return page.tags.count("script"), page.tags.count("img"), page.handlers


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, int, list[str]]:
    """The outline of the page of a harmless text."""
    store = stored(tmp_path_factory.mktemp("plain"), "plain")
    write_reports(RunView(store))
    return outline((store.path / "report.html").read_text())


@pytest.mark.first(6)
@pytest.mark.parametrize("name", TEXTS)
def test_it_is_text_in_every_report(name: str, tmp_path: Path, plain, capfd) -> None:  # type: ignore[no-untyped-def]
    store = stored(tmp_path, TEXTS[name])
    for words in ([], ["--markdown"]):
        assert exit_code_of(["report", str(store.path), *words, "--history", "none"]) == 0
    told = capfd.readouterr()
    assert not [mark for mark in FORBIDDEN if mark in told.out + told.err]
    assert outline((store.path / "report.html").read_text(encoding="utf-8")) == plain
    ElementTree.fromstring((store.path / "junit.xml").read_text(encoding="utf-8"))
    json.loads((store.path / "summary.json").read_text())
    for row in csv.reader(io.StringIO((store.path / "results.csv").read_text(encoding="utf-8"))):
        assert not any(cell.startswith(("=", "+", "-", "@", "\t", "\r")) for cell in row), row


@pytest.mark.parametrize("name", TEXTS)
def test_it_is_text_in_an_error(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of(["report", TEXTS[name], "--history", "none"]) == 2
    told = capfd.readouterr().err
    assert told.count("\n") == 1 and not [mark for mark in FORBIDDEN if mark in told]


def test_a_text_that_is_shown_unescaped_would_be_seen() -> None:
    assert outline("<p>" + TEXTS["the end of a script"]) == (0, 1, ["onerror"])
    assert outline("<p>" + TEXTS["a script"])[0] == 1
