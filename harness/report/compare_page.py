"""The page of a comparison: what changed from one run to another, in the style of the report."""

from __future__ import annotations

from harness.report.page import other_page
from harness.report.terminal_history import Causes, change_rows, changes_by_title, count_line
from harness.report.wording import num
from harness.store.history.compare import Comparison
from harness.store.history.entry import RunEntry


def render(found: Comparison, causes: Causes = ()) -> str:
    """The page. It lies in the folder of the newer run, and its cases lead to `report.html` there.

    `causes` are those of the newer run, with their commands.
    """
    lost = {key for keys in found.lost.values() for key in keys}
    bad = [num(len(found.new_failures), "new failure")] if found.new_failures else []
    bad += [f"{num(len(lost), 'case')} that passed no longer ran"] if lost else []
    old = len(found.same_failures) + len(found.other_failures)
    good = [f"{len(found.fixed)} fixed"] if found.fixed else []
    good += ["nothing new fails"] + ([f"{old} failed before too"] if old else [])
    title = " and ".join(bad) or ", ".join(good).capitalize()
    groups = [
        (title, change_rows([one for one in changes if one.key not in lost], causes))
        for title, changes in changes_by_title(found).items()
    ]
    values = {
        "groups": [(title, rows) for title, rows in groups if rows],
        "lost": found.lost,
        "counts": count_line(found),
        "is_like_with_like": found.is_like_with_like,
    }
    runs = [("before", _of_run(found.before)), ("now", _of_run(found.after)), ("command", found.after.command)]
    css = "fail" if bad else "error" if old else "pass"
    return other_page("compare.html", title, css, found.after.run_id, runs=runs, **values)


def _of_run(run: RunEntry) -> str:
    code = " ".join(filter(None, [run.source.branch, run.source.short_commit])) or "commit not known"
    return f"{run.run_id}, {run.started[:16].replace('T', ' ')} UTC, {code}, {num(len(run.cases), 'case')}"
