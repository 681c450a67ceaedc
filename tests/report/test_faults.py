"""Reports tell a fault that was missed from one that was seen and blamed otherwise than
declared.
"""

from __future__ import annotations

import io
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from harness.core.records import FaultResult
from harness.report import junit, markdown, page
from harness.report.console import console_for
from harness.report.run_view import RunView
from harness.report.terminal import print_run
from harness.store.history.entry import entry_of
from harness.store.run_folder import RunStore
from tests.transcripts import Approved, lines_with, page_text

SAID = "seen by answers, blamed lse where any of output, or no site was declared"
OTHER = "seen with another blame than declared"


def fault(name: str, *, seen: bool, caught: bool, **more: object) -> FaultResult:
    fields = {
        "scenario": "s",
        "case": "s[a=1]",
        "by": ("answers",) if seen else (),
        "expected_by": ("answers", "streams"),
    }
    return FaultResult(
        fault=name, seen=seen, caught=caught, allowed_blame=("output",), **{**fields, **more}
    )


@pytest.fixture
def view(tmp_path: Path) -> RunView:
    store = RunStore.create(tmp_path, [], command="mla-harness selftest", is_selftest=True)
    store.add_fault(fault("kv.caught", seen=True, caught=True))
    store.add_fault(
        fault(
            "kv.other", seen=True, caught=False, blamed=("lse",), reason=f"{SAID}: it fires alone"
        )
    )
    store.add_fault(fault("kv.missed", seen=False, caught=False, reason="the case ended in pass"))
    return RunView(RunStore.open(store.path))


def test_the_terminal_has_a_word_and_a_count_for_each(view: RunView, approved: Approved) -> None:
    stream = io.StringIO()
    print_run(console_for(stream), view)
    text = stream.getvalue()
    approved(
        lines_with(
            text,
            "caught kv.caught by",
            "WRONG BLAME kv.other",
            "MISSED kv.missed by",
            "faults caught: 1",
        )
    )
    assert SAID in text
    assert text.count("MISSED") == 1


def test_the_headline_says_why_the_run_is_red(view: RunView) -> None:
    assert view.headline == (f"1 of 3 faults was missed, and 1 of 3 faults was {OTHER}", "fail")


def test_the_page_shows_what_was_declared(view: RunView, approved: Approved) -> None:
    text = page.render(view)
    assert ">wrong blame<" in text and ">missed<" in text and ">caught<" in text
    approved(
        lines_with(page_text(text), "answers or streams,", "declared any of", "expected answers or")
    )


def test_markdown_lists_them_apart(view: RunView) -> None:
    text = markdown.render(view)
    missed, other = (
        text.index("### Faults that were missed"),
        text.index(f"### Faults that were {OTHER}"),
    )
    assert missed < text.index("kv.missed in") < other < text.index("kv.other in")


def test_junit_has_a_type_for_each(view: RunView, approved: Approved) -> None:
    failures = {one.get("type"): one for one in ET.fromstring(junit.render(view)).iter("failure")}
    assert failures.keys() == {"wrong-blame", "missed"}
    approved(failures["wrong-blame"].text or "")


def test_the_history_keeps_them_apart(view: RunView) -> None:
    assert [one.verdict for one in entry_of(view.store).faults] == [
        "caught",
        "wrong-blame",
        "missed",
    ]
