"""The page of a comparison: what changed from one run to another, in the style of the report."""

from __future__ import annotations

from harness.report.page import other_page
from harness.report.terminal_history import changes_by_title, count_line, difference
from harness.report.wording import num
from harness.store.history.compare import Comparison
from harness.store.history.entry import Entry, RunEntry

Row = tuple[str, Entry | None, Entry | None, str]


def render(found: Comparison) -> str:
    """The page. It lies in the folder of the newer run, and its cases lead to `report.html` there."""
    lost = {key for keys in found.lost.values() for key in keys}
    bad = [num(len(found.new_failures), "new failure")] if found.new_failures else []
    bad += [f"{num(len(lost), 'case')} that passed no longer ran"] if lost else []
    title = " and ".join(bad) or (
        f"{len(found.fixed)} fixed, nothing new fails" if found.fixed else "Nothing new fails"
    )
    groups: list[tuple[str, list[Row]]] = [
        (title, [(one.key, one.before, one.after, difference(one)) for one in changes if one.key not in lost])
        for title, changes in changes_by_title(found).items()
    ]
    gone: list[Row] = [
        (key, None, None, f"passed before; {reason}") for reason, keys in found.lost.items() for key in keys
    ]
    groups.insert(1, ("good before, skipped or gone now", gone))
    shown = [(title, rows) for title, rows in groups if rows]
    values = {"groups": shown, "counts": count_line(found), "is_like_with_like": found.is_like_with_like}
    runs = [("before", _of_run(found.before)), ("now", _of_run(found.after)), ("command", found.after.command)]
    return other_page("compare.html", title, "fail" if bad else "pass", found.after.run_id, runs=runs, **values)


def _of_run(run: RunEntry) -> str:
    code = " ".join(filter(None, [run.source.branch, run.source.short_commit])) or "commit not known"
    return f"{run.run_id}, {run.started[:16].replace('T', ' ')} UTC, {code}, {num(len(run.cases), 'case')}"
