"""The summary for a CI job's page: what matters first, cut to size, and no text of a kernel becomes
markup.
"""

from __future__ import annotations

from pathlib import Path

from harness.core.cases import Case, Job
from harness.core.findings import Finding
from harness.core.records import Blame, CaseResult, FaultResult, Verdict
from harness.report.markdown import MAX_LISTED
from harness.report.markdown import render as render_view
from harness.report.run_view import RunView
from harness.store.history.compare import RunComparison, compare
from harness.store.history.entry import entry_of
from harness.store.run_folder import RunStore
from harness.store.source import Source
from tests.transcripts import Approved, lines_with


def store_of(
    root: Path, verdicts: dict[str, Verdict], message: str = "NaN in live rows"
) -> RunStore:
    cases = {
        key: Case(
            id=key, scenario=key.partition("[")[0], system="kernel", op="write_kv", refs=("a/b#1",)
        )
        for key in verdicts
    }
    store = RunStore.create(
        root, [Job(key=key, case=case) for key, case in cases.items()], command="mla-harness run"
    )
    store.note_source(Source(commit="abcdef0123", branch="main"))
    for key, verdict in verdicts.items():
        findings = (Finding(oracle="finite", message=message),) if verdict is Verdict.FAIL else ()
        result = CaseResult(
            key=key,
            id=key,
            scenario=cases[key].scenario,
            refs=("a/b#1",),
            verdict=verdict,
            findings=findings,
            seconds=1.0,
            reason=message if findings else "",
        )
        store.add(result)
    return store


def render(store: RunStore, comparison: RunComparison | None = None) -> str:
    return render_view(RunView(store), comparison)


def test_a_good_run_is_a_headline_and_one_row(tmp_path: Path, approved: Approved) -> None:
    store = store_of(
        tmp_path, {"a[x=1]": Verdict.PASS, "b[x=1]": Verdict.PASS, "b[x=2]": Verdict.SKIP}
    )
    told = render(store)
    approved(lines_with(told, "## ✅ mla-harness", "| 2 scenarios"))
    assert "main abcdef0 " in told
    assert "Failures" not in told


def test_failures_come_with_blame_and_command_and_like_ones_are_told_once(
    tmp_path: Path, approved: Approved
) -> None:
    store = store_of(tmp_path, {"a[x=1]": Verdict.FAIL, "a[x=2]": Verdict.FAIL, "b": Verdict.PASS})
    store.add_blame("a[x=1]", Blame(sites=("kv.tail",)))
    told = render(store)
    approved(
        lines_with(
            told,
            "## ❌ mla-harness",
            "- **fail** `write_kv/torch:",
            "smallest case: `mla-harness",
            "| 1 scenario",
            "| **all** |",
        )
    )
    assert "`a[x=2]`" not in told and "blame: `kv.tail`" in told


def test_a_fault_that_was_not_caught_makes_the_run_bad(tmp_path: Path, approved: Approved) -> None:
    store = store_of(tmp_path, {"a": Verdict.PASS})
    missed = FaultResult(
        fault="kv.tail",
        scenario="a",
        case="a",
        caught=False,
        expected_by=("finite",),
        reason="the case ended in pass",
    )
    store.add_fault(missed)
    told = render(store)
    assert "\u274c" in told
    approved(lines_with(told, "1 of 1", "kv.tail in a:"))


def test_a_run_that_judged_nothing_is_not_good(tmp_path: Path, approved: Approved) -> None:
    approved(render(store_of(tmp_path, {"a": Verdict.SKIP})))


def test_new_failures_stand_before_all_failures(tmp_path: Path) -> None:
    before = store_of(tmp_path, {"a": Verdict.PASS, "b": Verdict.FAIL})
    after = store_of(tmp_path, {"a": Verdict.FAIL, "b": Verdict.PASS})
    told = render(after, compare(entry_of(before), entry_of(after)))
    assert (
        told.index("**New failures: 1**") < told.index("**Fixed: 1**") < told.index("### Failures")
    )


def test_text_of_a_kernel_cannot_become_html_or_break_a_table(
    tmp_path: Path, approved: Approved
) -> None:
    evil = "</summary><img src=x onerror=alert(1)> | `code` ![i](http://x) \n# title\x1b[31m <!-- "
    store = store_of(tmp_path, {"a[x=`|`]": Verdict.FAIL}, evil)
    after = store_of(tmp_path, {"a[x=`|`]": Verdict.CRASH, "b`|<b>": Verdict.FAIL}, evil)
    told = render(after, compare(entry_of(store), entry_of(after)))
    assert "<img" not in told.replace("\\<img", "") and "<!--" not in told.replace(
        "\\<!--", ""
    ).replace("\\<\\!--", "")
    assert "\x1b" not in told and "\n# title" not in told and "![i](" not in told
    assert "\\| \\`code" in told
    approved(lines_with(told, "`` mla-harness run"))


def test_a_run_in_which_all_fails_is_cut_to_size(tmp_path: Path, approved: Approved) -> None:
    verdicts = {f"s{number}[x=1]": Verdict.FAIL for number in range(3 * MAX_LISTED)}
    many = {f"s{number}": Blame(sites=(f"site{number}",)) for number in range(3 * MAX_LISTED)}
    after = store_of(tmp_path, verdicts, "x" * 5000)
    for scenario, blame in many.items():
        after.add_blame(f"{scenario}[x=1]", blame)
    told = render(
        after,
        compare(
            entry_of(store_of(tmp_path, dict.fromkeys(verdicts, Verdict.PASS))), entry_of(after)
        ),
    )
    assert len(told) < 64_000 and f"and {2 * MAX_LISTED} more" in told
    approved(lines_with(told, "more causes: see"))
