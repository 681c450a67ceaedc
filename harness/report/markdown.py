"""A run in Markdown, for the summary page of a CI job: verdict first, new failures next, all of it cut to size."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from harness.core.records import BAD, AccuracyRecord, CaseResult, FaultResult
from harness.report.causes import Cause
from harness.report.run_view import RunView
from harness.report.terminal_history import change_groups, count_line, flaky_line
from harness.report.wording import accuracy_title, known_line, num, one_line
from harness.store.history.compare import Comparison
from harness.store.history.trends import Trends
from harness.store.summary import totals

MAX_LISTED = 20
_BAR = re.compile(r"(?<!\\)\|")
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()!|~&$])")


def render(view: RunView, comparison: Comparison | None = None, trends: Trends | None = None) -> str:
    """The summary of a run; with a comparison also what changed, with trends also what is flaky.

    Text of kernels, findings and branches is escaped: none of it can become HTML, an image or a row of a table. Lists
    are cut, so that it stays far below the 1 MiB that GitHub takes of a step.
    """
    blocks = [
        [_headline(view)],
        _facts(view),
        _totals(view),
        _changes(comparison, view),
        _failures(view),
        _known(view),
        _faults(view.faults),
        _accuracy(view.accuracy),
        _flaky(trends),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _headline(view: RunView) -> str:
    sentence, colour = view.headline
    mark = "\u2705" if colour in ("pass", "known") else "\u274c"
    return f"## {mark} {_escaped(one_line(view.plan.command, 120))}: {_escaped(sentence)}"


def _facts(view: RunView) -> list[str]:
    source, environment = view.plan.source, view.plan.environment
    code = " ".join(filter(None, [source.branch, source.short_commit]))
    machine = (environment.get("gpus") and environment["gpus"][0].get("name")) or environment.get("cpu")
    torch = f"torch {environment['torch']}" if environment.get("torch") else ""
    facts = (view.plan.run_id, code, f"{view.plan.seconds:.1f} s", torch, str(machine or ""))
    shown = [f"Shown: {_escaped(view.covered)}"] if view.covered else []
    return [_escaped(" · ".join(filter(None, facts))), *shown]


def _totals(view: RunView) -> list[str]:
    if not view.results:
        return []
    groups, verdicts = view.scenarios, list(view.counts)
    # A scenario in which all is well is one of many; they are counted together.
    shown = {name: group for name, group in groups.items() if any(one.verdict in BAD for one in group)}
    rows = [
        [_code(name), *_counts(group, verdicts), _seconds(group)] for name, group in list(shown.items())[:MAX_LISTED]
    ]
    others = [result for name, group in groups.items() if name not in shown for result in group]
    if others:
        named = num(len(groups) - len(shown), "scenario") + (" without a failure" if shown else "")
        rows.append([named, *_counts(others, verdicts), _seconds(others)])
    if len(groups) > 1 and shown:
        rows.append(["**all**", *_counts(view.results, verdicts), _seconds(view.results)])
    return [table(["scenario", *verdicts, "s"], rows)]


def _changes(comparison: Comparison | None, view: RunView) -> list[str]:
    if comparison is None:
        return []
    before = comparison.before
    code = _escaped(" ".join(filter(None, [before.source.branch, before.source.short_commit])))
    lines = [
        f"### Against {_code(before.run_id)}" + (f" ({code})" if code else ""),
        "",
        _escaped(count_line(comparison)),
    ]
    for title, count, changes in change_groups(comparison, view.causes):
        if count:
            lines += ["", f"**{title.capitalize()}: {count}**", "", *_list(changes)]
    return lines


def _failures(view: RunView) -> list[str]:
    found, not_run = view.causes, view.num_not_run
    lines = ["### Failures", ""] if found or not_run else []
    for cause, commands in found[:MAX_LISTED]:
        lines += _cause(cause, next(iter(commands.values())))
    if len(found) > MAX_LISTED:
        lines.append(f"- and {len(found) - MAX_LISTED} more causes: see report.html")
    if not_run:
        lines.append(f"- {num(not_run, 'case')} not run: the run ended before")
    return lines


def _cause(cause: Cause, command: str) -> list[str]:
    refs = f" ({_escaped(', '.join(cause.first.refs))})" if cause.first.refs else ""
    lines = [f"- **{cause.verdict.value}** {_code(cause.title)}{refs}: {_escaped(one_line(cause.sentence, 300))}"]
    if cause.blame and cause.sites:
        lines.append(f"  <br>blame: {', '.join(_code(site) for site in sorted(cause.sites))}")
    return [*lines, f"  <br>smallest case: {_code(command)}"]


def _known(view: RunView) -> list[str]:
    lines = [known_line(result) for result in view.known]
    return [f"### Known failures: {len(lines)}", "", *_list(lines)] if lines else []


def _faults(faults: Sequence[FaultResult]) -> list[str]:
    missed = [fault for fault in faults if not fault.caught]
    if not missed:
        return []
    lines = [f"{fault.fault} in {fault.case}: {one_line(fault.reason, 200)}" for fault in missed]
    return ["### Faults that were not caught", "", *_list(lines)]


def _accuracy(records: Sequence[AccuracyRecord]) -> list[str]:
    rows = [
        [
            _escaped(accuracy_title(record)),
            ", ".join(f"{epoch.accuracy:.4f}" for epoch in record.epochs),
            f"{record.baseline.accuracy:.4f}" if record.baseline else "",
            record.verdict.value,
        ]
        for record in records[:MAX_LISTED]
    ]
    return ["### Accuracy", "", table(["measured", "by epoch", "baseline", "verdict"], rows)] if rows else []


def _flaky(trends: Trends | None) -> list[str]:
    if trends is None or not trends.flaky:
        return []
    lines = [flaky_line(case) for case in trends.flaky]
    return [f"### Flaky in the last {num(len(trends.runs), 'run')}", "", *_list(lines)]


def _list(lines: Sequence[str]) -> list[str]:
    shown = [f"- {_escaped(line)}" for line in lines[:MAX_LISTED]]
    return shown + ([f"- and {len(lines) - MAX_LISTED} more"] if len(lines) > MAX_LISTED else [])


def table(head: Sequence[str], rows: Iterable[Iterable[object]] = ()) -> str:
    """A table. A cell stands on one line, and a bar in it is escaped."""
    return "\n".join([_row(head), "|" + " --- |" * len(head), *map(_row, rows)])


def _row(cells: Iterable[object]) -> str:
    return "| " + " | ".join(_BAR.sub(r"\|", " ".join(str(cell).split())) for cell in cells) + " |"


def _counts(results: Sequence[CaseResult], verdicts: Iterable[str]) -> list[str]:
    counts = totals(results)
    return [str(counts.get(verdict) or "·") for verdict in verdicts]


def _seconds(results: Sequence[CaseResult]) -> str:
    return f"{sum(result.seconds for result in results):.1f}"


def _escaped(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    return _SPECIAL.sub(r"\\\1", one_line(text, 1000))


def _code(text: str) -> str:
    """Text in a code span, fenced by more backticks than it holds in a row."""
    plain = one_line(text, 1000)
    longest = max((len(run) for run in re.findall("`+", plain)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if longest else ""
    return f"{fence}{pad}{plain}{pad}{fence}"
