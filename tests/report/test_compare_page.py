"""The page of `compare --html`: what got worse, and several servers beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.accuracy.acceptance import Drafts, keep_drafts
from harness.accuracy.cache_hits import Hits, keep_hits
from harness.cli.main import app
from harness.core.cases import Case, Job
from harness.core.errors import InputError
from harness.core.findings import Finding
from harness.core.records import CaseResult, Verdict
from harness.report.compare_page import render
from harness.report.run_view import RunView
from harness.store.history.compare import compare
from harness.store.history.entry import entry_of
from harness.store.run_folder import RunStore
from harness.store.source import Source
from tests.report.answered_runs import HOSTILE, answered
from tests.transcripts import Approved, page_text

NAN = Finding(oracle="finite", site="kv.tail", tensor="out", message=f"NaN {HOSTILE}")


def run_of(root: Path, verdicts: dict[str, Verdict], commit: str) -> RunStore:
    jobs = [
        Job(
            key=name,
            case=Case(id=name, scenario="s", system="kernel", op="mla_decode", params={}),
        )
        for name in verdicts
    ]
    store = RunStore.create(root, jobs, command="mla-harness run")
    store.note_source(Source(commit=commit * 40, branch=HOSTILE))
    for job, verdict in zip(jobs, verdicts.values(), strict=True):
        found = (NAN,) if verdict is Verdict.FAIL else ()
        store.add(CaseResult.of(job, verdict, findings=found))
    return store


def page_of(first: RunStore, *others: RunStore) -> str:
    views = {str(run.path): RunView(run) for run in (first, *others)}
    before = entry_of(first)
    return render([compare(before, entry_of(run)) for run in others], views, first.path.parent)


GOOD, BAD = Verdict.PASS, Verdict.FAIL


def test_what_got_worse_and_what_was_fixed_stand_on_the_page(
    tmp_path: Path, approved: Approved
) -> None:
    before = run_of(tmp_path, {"s[n=1]": GOOD, "s[n=2]": BAD, "s[n=3]": GOOD}, "a")
    after = run_of(tmp_path, {"s[n=1]": BAD, "s[n=2]": GOOD, "s[n=3]": Verdict.SKIP}, "b")
    text = page_of(before, after)
    approved(page_text(text))
    assert HOSTILE not in text and '<section id="verdict" class="fail"' in text


def test_equal_runs_are_green(tmp_path: Path) -> None:
    runs = [run_of(tmp_path, {"s[n=1]": GOOD}, commit) for commit in "ab"]
    text = page_of(*runs)
    assert "No case got worse" in text and '<section id="verdict" class="pass"' in text


def test_a_case_links_to_its_place_on_the_page_of_its_run(tmp_path: Path) -> None:
    before, after = (run_of(tmp_path, {"s[n=1]": one}, c) for one, c in ((GOOD, "a"), (BAD, "b")))
    (after.path / "report.html").write_text("x")
    assert f'href="{after.path.name}/report.html#s%5Bn%3D1%5D"' in page_of(before, after)


def servers(root: Path, *answers: Sequence[Sequence[str]]) -> list[RunStore]:
    return [answered(root, epochs) for epochs in answers]


YES, HALF = ["yes"] * 40, ["yes"] * 20 + ["no"] * 20


def test_three_servers_stand_beside_each_other_with_the_answers_that_differ(
    tmp_path: Path,
) -> None:
    runs = servers(tmp_path, [YES, YES], [HALF, YES], [YES, HALF])
    text = page_of(*runs)
    assert text.count('class="line s') == 3
    words = " ".join(page_text(text).split())
    # The second server lost 20 answers of the first epoch, the third none.
    assert "0.5000 0.3520 to 0.6480 20 0 1.9e-06" in words
    assert "0.5000 0.3520 to 0.6480 0 0 1" in words


def test_accepted_drafts_and_prefix_hits_stand_beside_accuracy(tmp_path: Path) -> None:
    runs = servers(tmp_path, [YES, YES], [YES, YES])
    keep_drafts(runs[0].path, 1, Drafts(100, 90))
    keep_drafts(runs[0].path, 2, Drafts(100, 40))
    keep_hits(runs[1].path, 1, Hits(100, 75))
    text = page_of(*runs)
    assert "drafts accepted" in text and "0.40 to 0.90" in text
    assert "prefix hits" in text and ">0.75<" in text
    assert "Share of prompt tokens that the prefix cache had, by epoch" in text


def test_runs_of_other_tasks_are_not_drawn_together(tmp_path: Path) -> None:
    (one,) = servers(tmp_path, [YES])
    other = run_of(tmp_path, {"s[n=1]": GOOD}, "b")
    assert 'id="accuracy"' not in page_of(one, other)


def test_the_command_writes_the_page_of_three_runs(tmp_path: Path, approved: Approved) -> None:
    names = [run_of(tmp_path, {"s[n=1]": one}, "a").path.name for one in (GOOD, GOOD, BAD)]
    file = tmp_path / "compare.html"
    words = ["compare", *names, "--out", str(tmp_path)]
    with approved.raises(InputError):
        CliRunner().invoke(app, words, catch_exceptions=False)
    done = CliRunner().invoke(app, [*words, "--html", str(file)])
    assert done.exit_code == 1, "the third run has a new failure"
    assert "3 runs compared" in file.read_text(encoding="utf-8")


def test_no_comparison_is_refused() -> None:
    with pytest.raises(ValueError, match="no comparison"):
        render([], {}, Path("."))
