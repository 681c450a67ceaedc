"""Known failures are in every report of a run that has one, and a report without one does not
mention them.
"""

from __future__ import annotations

import csv
import io
import json
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.core.cases import Case, Job, KnownFailure
from harness.core.findings import Finding
from harness.core.records import CaseResult, Verdict
from harness.diagnose.run_jobs import apply_known
from harness.report import junit, markdown, page, table
from harness.report.bisect import Column, exit_code_of_columns, first_bad, rows
from harness.report.console import console_for
from harness.report.run_view import RunView
from harness.report.terminal import print_run
from harness.report.terminal_history import print_comparison, print_runs, print_scenario
from harness.store.history.compare import compare
from harness.store.history.entry import entry_of
from harness.store.history.trends import Trends, trends_over
from harness.store.run_folder import RunStore
from harness.store.summary import canonical, summarise
from tests.transcripts import Approved, lines_with, page_text

ISSUE = "vllm-project/vllm#43961"
URL = "https://github.com/vllm-project/vllm/issues/43961"
ENTRY = KnownFailure(issue=ISSUE, engine="vllm", versions=">=0.21,<0.23")
KNOWN, OTHER = "stale[backend=A]", "stale[backend=B]"
BROKEN = Finding(oracle="finite", message="NaN in live rows of out")


def run_of(root: Path, expected: Verdict, version: str = "0.22.1") -> RunStore:
    """A run of two cases.

    Case `KNOWN` ends in `expected` before its known failure is taken into account.
    """
    cases = [
        Case(
            id=name,
            scenario="stale",
            system="kernel",
            op="write_kv",
            known=(ENTRY,) if name == KNOWN else (),
        )
        for name in (KNOWN, OTHER)
    ]
    store = RunStore.create(
        root, [Job(key=case.id, case=case) for case in cases], command="mla-harness run"
    )
    store.note_environment({"engines": {"vllm": version}, "python": "3.12"})
    for job in store.plan.jobs:
        verdict = expected if job.key == KNOWN else Verdict.PASS
        findings = (BROKEN,) if verdict is Verdict.FAIL else ()
        result = CaseResult.of(
            job, verdict, seconds=1.0, reason=BROKEN.message if findings else "", findings=findings
        )
        store.add(apply_known(job, result, {"vllm": version}))
    return RunStore.open(store.path)


@pytest.fixture
def known(tmp_path: Path) -> RunStore:
    """A run in which one case fails as known and the other passes."""
    return run_of(tmp_path, Verdict.FAIL)


@pytest.fixture
def gone(tmp_path: Path) -> RunStore:
    """A run in which a case passes although it is known to fail."""
    return run_of(tmp_path, Verdict.PASS)


@pytest.fixture
def clean(tmp_path: Path) -> RunStore:
    """The same cases on a release without the known failure."""
    return run_of(tmp_path, Verdict.PASS, "0.23.0")


def printed(store: RunStore) -> str:
    stream = io.StringIO()
    print_run(console_for(stream), RunView(store))
    return stream.getvalue()


def trends_of(*stores: RunStore) -> Trends:
    return trends_over([entry_of(store) for store in stores])


def test_the_terminal_counts_and_lists_them(known: RunStore, approved: Approved) -> None:
    text = printed(known)
    assert "known failures: 1" in text and f"  {ISSUE} in vllm >=0.21,<0.23: {KNOWN}" in text
    assert "again:" not in text
    approved(lines_with(text, "1 pass, 1"))


def test_the_page_has_a_section_a_filter_and_a_view_with_the_issue_as_a_link(
    known: RunStore,
    approved: Approved,
) -> None:
    text = page.render(RunView(known))
    approved(lines_with(page_text(text), "failed as known"))
    assert 'value="known"' in text
    section = text.partition('<section id="known"')[2].partition("</section>")[0]
    assert f'href="{URL}"' in section and "vllm <code>&gt;=0.21,&lt;0.23</code>" in section
    assert BROKEN.message in section and 'href="#case-1"' in section
    view = text.partition('<article class="view known')[2].partition("</article>")[0]
    assert f'href="{URL}"' in view and "<dt>known failure</dt>" in view and BROKEN.message in view
    assert 'id="failures"' not in text


def test_a_run_with_known_failures_alone_is_not_green(tmp_path: Path, approved: Approved) -> None:
    case = Case(id=KNOWN, scenario="stale", system="kernel", op="write_kv", known=(ENTRY,))
    job = Job(key=KNOWN, case=case)
    store = RunStore.create(tmp_path, [job], command="x")
    store.add(
        apply_known(job, CaseResult.of(job, Verdict.FAIL, findings=(BROKEN,)), {"vllm": "0.22.1"})
    )
    text = page.render(RunView(store))
    assert '<section id="verdict" class="known"' in text
    approved(lines_with(page_text(text), "Nothing passed: 1"))


def test_markdown_lists_them_with_issue_and_case(known: RunStore, approved: Approved) -> None:
    text = markdown.render(RunView(known))
    approved(lines_with(text, "## ✅ mla-harness", "### Known failures:", "| scenario |"))
    assert "stale\\[backend=A\\]" in text
    assert "### Failures" not in text


def test_junit_skips_them_with_the_issue_as_message(known: RunStore) -> None:
    root = ET.fromstring(junit.render(RunView(known)))
    assert (root.get("failures"), root.get("errors"), root.get("skipped")) == ("0", "0", "1")
    (skipped,) = root.iter("skipped")
    assert ISSUE in (skipped.get("message") or "")


def test_results_csv_and_the_summary_name_issue_engine_and_versions(known: RunStore) -> None:
    first, second = csv.DictReader(io.StringIO(table.render(RunView(known))))
    assert (first["verdict"], first["known_issue"], first["known_in"]) == (
        "known",
        ISSUE,
        "vllm >=0.21,<0.23",
    )
    assert (second["verdict"], second["known_issue"], second["known_in"]) == ("pass", "", "")
    summary = summarise(known)
    assert summary["totals"]["known"] == 1
    assert summary["cases"][0]["known"] == {
        "issue": ISSUE,
        "engine": "vllm",
        "versions": ">=0.21,<0.23",
    }


def test_the_canonical_report_has_the_verdict_and_the_issue(known: RunStore) -> None:
    first = json.loads(canonical(known).splitlines()[0])
    assert first["verdict"] == "known" and ISSUE in first["reason"] and first["findings"]


def test_a_known_failure_that_passes_is_red_and_says_so_everywhere(gone: RunStore) -> None:
    said = f"which is known to fail: {ISSUE}"
    (failure,) = ET.fromstring(junit.render(RunView(gone))).iter("failure")
    assert failure.get("type") == "known" and said in (failure.get("message") or "")
    text = page.render(RunView(gone))
    assert (
        "1 case fails" in text
        and said in text
        and f'href="{URL}"' in text
        and 'id="known"' not in text
    )
    assert said in printed(gone) and "FAIL" in printed(gone)
    assert "### Failures" in markdown.render(RunView(gone)) and "\u274c" in markdown.render(
        RunView(gone)
    )


def test_a_known_failure_that_is_fixed_is_news_and_a_new_one_is_no_regression(
    known: RunStore, clean: RunStore, approved: Approved
) -> None:
    fixed, found = (compare(*map(entry_of, pair)) for pair in ((known, clean), (clean, known)))
    assert [change.key for change in fixed.fixed] == [KNOWN] and not fixed.known
    assert [change.key for change in found.known] == [KNOWN] and not found.new_failures
    assert "**Known failures: 1**" in markdown.render(
        RunView(known), found
    ) and "**Fixed: 1**" in markdown.render(RunView(clean), fixed)
    stream = io.StringIO()
    print_comparison(console_for(stream), found)
    approved(stream.getvalue())
    assert ISSUE in stream.getvalue()


def test_a_failure_that_becomes_known_is_named_and_one_that_stays_known_is_counted(
    tmp_path: Path,
    approved: Approved,
) -> None:
    failed, known = run_of(tmp_path, Verdict.FAIL, "0.23.0"), run_of(tmp_path, Verdict.FAIL)
    found = compare(entry_of(failed), entry_of(known))
    assert (
        [change.key for change in found.known] == [KNOWN]
        and not found.fixed
        and not found.other_failures
    )
    back = compare(entry_of(known), entry_of(failed))
    assert [change.key for change in back.new_failures] == [KNOWN]
    same = compare(entry_of(known), entry_of(known))
    assert (same.num_same_known, same.same_failures, same.known) == (1, (), ())
    stream = io.StringIO()
    print_comparison(console_for(stream), same)
    approved(stream.getvalue())


def test_history_and_trends_count_them(known: RunStore, clean: RunStore) -> None:
    found = trends_of(clean, known)
    assert found.runs[-1].totals["known"] == 1 and "known" not in found.runs[0].totals
    trend = next(case for case in found.cases if case.key == KNOWN)
    assert trend.verdicts == "pk"
    stream = io.StringIO()
    print_runs(console_for(stream), found)
    print_scenario(console_for(stream), "stale", found)
    assert stream.getvalue().count("known") >= 3 and "k known" in stream.getvalue()


def reports(store: RunStore) -> Iterator[str]:
    trends = trends_of(store, store)
    comparison = compare(entry_of(store), entry_of(store))
    stream = io.StringIO()
    print_runs(console_for(stream), trends)
    print_scenario(console_for(stream), "stale", trends)
    print_comparison(console_for(stream), comparison)
    yield stream.getvalue()
    yield printed(store)
    yield page.render(RunView(store)).partition("<body>")[2].partition("<script")[0]
    yield markdown.render(RunView(store), comparison, trends)
    yield junit.render(RunView(store))
    yield table.render(RunView(store))
    yield json.dumps(summarise(store))


def test_no_report_of_a_run_without_one_mentions_them(clean: RunStore) -> None:
    for text in reports(clean):
        assert "known" not in text.lower().replace("unknown", "").replace("commit not known", "")


def test_in_a_bisect_a_known_failure_is_bad_in_its_version_and_fails_nothing(
    known: RunStore,
    approved: Approved,
) -> None:
    summary = summarise(known)
    column = Column("python", summary=summary)
    row, _ = rows([column])
    assert row.cells == ("known finite",) and row.answer.startswith("0.22.1")
    assert exit_code_of_columns([column]) == 0
    approved(first_bad(["0.21", "0.22", "0.23"], ["pass", "known", "pass"]))
