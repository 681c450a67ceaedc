"""The history in a terminal: runs in a list, a scenario or a case from run to run, and two runs
side by side.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.report.causes import Cause
from harness.report.console import table
from harness.report.terminal import STYLES, count_text, verdict_text
from harness.report.wording import fault_word, num, one_line, printable
from harness.store.history.compare import Change, RunComparison
from harness.store.history.entry import FAULT_VERDICTS, Entry, RunEntry
from harness.store.history.trends import LETTERS, CaseTrend, Trends
from harness.store.summary import shown_verdicts

Causes = Sequence[tuple[Cause, dict[str, str]]]
"""Causes of a run, each with the commands for its example."""
MAX_LISTED = 20
MAX_LETTERS = 60
MAX_ROWS = 200
"""Rows of a table; a thousand take seconds to lay out."""
_NUMBERS = {*LETTERS, "faults", "s", "median s", "accuracy"}
_LEAST_WIDTHS = {"run": 21, "started (UTC)": 16, "commit": 8, "branch": 6, "s": 6}
_GROUP_STYLES = {
    "new failures": "bold red",
    "good before, skipped or gone now": "bold red",
    "failing in another way": "red",
    "failing as before": "red",
    "known failures": STYLES["known"],
    "fixed": "green",
    "no longer judged": "yellow",
}
_STYLES = {letter: STYLES.get(verdict, "") for verdict, letter in LETTERS.items()}


def print_runs(console: Console, found: Trends) -> None:
    """The runs, newest last, and the cases that are flaky in them."""
    if not _has_runs(console, found):
        return
    verdicts = shown_verdicts({name for run in found.runs for name in run.totals})
    table = _table("run", "started (UTC)", "commit", "branch", *verdicts, "faults", "s")
    table.add_column("command", overflow="ellipsis", no_wrap=True, min_width=12)
    for run in found.runs[-MAX_ROWS:]:
        counts = [count_text(name, run.totals.get(name, 0)) for name in verdicts]
        caught = f"{run.num_caught}/{len(run.faults)}" if run.faults else ""
        command = one_line(run.command.removeprefix("mla-harness "), 60)
        table.add_row(*_place(run), *counts, caught, f"{run.seconds:.1f}", command)
    console.print(table)
    _print_flaky(console, found)


def print_scenario(console: Console, name: str, found: Trends) -> None:
    """One scenario: a row for each run, then the cases and faults that were not always the same."""
    if not _has_runs(console, found):
        return
    kinds = {
        "pass": ("pass",),
        "fail": ("fail", "crash", "error"),
        "skip": ("skip",),
        "known": ("known",),
    }
    counted = [[one for one in run.cases if one.scenario == name] for run in found.runs]
    if not any(one.verdict == "known" for own in counted for one in own):
        del kinds["known"]
    table = _table("run", "started (UTC)", "commit", "branch", *kinds, "s", "accuracy")
    for run, own in list(zip(found.runs, counted, strict=True))[-MAX_ROWS:]:
        counts = [
            count_text(kind, sum(one.verdict in words for one in own))
            for kind, words in kinds.items()
        ]
        ran = [one for one in own if one.verdict != "skip"]
        lowest = min((one.accuracy for one in ran if one.accuracy is not None), default=None)
        seconds = sum(one.seconds for one in ran) if ran else None
        table.add_row(*_place(run), *counts, _number(seconds, 1), _number(lowest, 4))
    console.print(table)
    _print_changing(console, name, found)
    for case in found.cases:
        caught, *others = (case.verdicts.count(LETTERS[outcome]) for outcome in FAULT_VERDICTS)
        if total := caught + sum(others):
            where = f"fault {case.key.rpartition('!')[2]} caught in {caught} of {num(total, 'run')}"
            console.print(where, style="green" if caught == total else "bold red")
    _print_flaky(console, found)


def print_case(console: Console, name: str, found: Trends, results: Sequence[Entry | None]) -> None:
    """One case: a row for each run, with the reason where it did not pass."""
    console.print(printable(name), soft_wrap=True)
    if not _has_runs(console, found):
        return
    table = _table(
        "run", "started (UTC)", "commit", "branch", "verdict", "s", "accuracy by epoch", "device"
    )
    table.add_column("by", overflow="fold")
    for run, result in list(zip(found.runs, results, strict=True))[-MAX_ROWS:]:
        if result is not None:
            epochs = ", ".join(f"{accuracy:.4f}" for accuracy in result.accuracies)
            by = one_line(", ".join(result.oracles), 60)
            verdict = verdict_text(result.verdict)
            table.add_row(*_place(run), verdict, f"{result.seconds:.2f}", epochs, result.device, by)
    console.print(table)
    reasons = {result.note: result.verdict for result in results if result and result.note}
    for note, word in list(reasons.items())[-MAX_LISTED:]:
        console.print(verdict_text(word), one_line(note), soft_wrap=True)
    _print_flaky(console, found)


def print_comparison(console: Console, found: RunComparison, causes: Causes = ()) -> None:
    """The groups of changes, then how much is unchanged.

    `causes` are of the newer run, with their commands.
    """
    for title, run in (("before", found.before), ("after ", found.after)):
        console.print(f"{title} {_describe(run)}", soft_wrap=True)
    if not found.is_like_with_like:
        console.print("options, machine or versions are not the same in both", style="yellow")
    for title, count, lines in change_groups(found, causes):
        if count or title in ("new failures", "fixed"):
            console.print(f"\n{title}: {count}", style=_GROUP_STYLES.get(title) if count else None)
        _print_lines(console, lines)
    console.print(f"\n{count_line(found)}", soft_wrap=True)


def change_groups(found: RunComparison, causes: Causes = ()) -> list[tuple[str, int, list[str]]]:
    """Title, number of changes and lines of each group, what matters most first.

    Lost cases have a line a reason.
    """
    titled = {
        "new failures": found.new_failures,
        "failing in another way": found.other_failures,
        "failing as before": found.same_failures,
        "known failures": found.known,
        "fixed": found.fixed,
        "no longer judged": found.not_judged,
        "accuracy changed": found.accuracy,
        "time changed": found.time,
    }
    shown = [
        (title, len(changes), list(_change_lines(changes, causes)))
        for title, changes in titled.items()
    ]
    lost = [
        f"{len(keys)}: {one_line(why, 200)}; {one_line(keys[0], 200)} first"
        for why, keys in found.lost.items()
    ]
    # A regression like the new failures, so it stands beside them.
    shown.insert(1, ("good before, skipped or gone now", sum(map(len, found.lost.values())), lost))
    return shown


def _change_lines(changes: Sequence[Change], causes: Causes) -> Iterator[str]:
    """A line for each cause of the changes, with its first command, then one for each other
    change.
    """
    left = {change.key: change for change in changes}
    for cause, commands in causes:
        if own := [left.pop(member.key) for member in cause.members if member.key in left]:
            yield _change_line(own, cause.kernel, next(iter(commands.values()), ""))
    yield from (_change_line([change]) for change in left.values())


def _change_line(changes: Sequence[Change], title: str = "", command: str = "") -> str:
    """The changes of all cases of one cause, for which the first one stands."""
    first = changes[0]
    before = first.before
    after = first.after
    word = fault_word(after.verdict)
    word = word.upper() if before is None or before.verdict != after.verdict else word
    named = (
        f"{title}: {num(len(changes), 'case')}, {first.key} first"
        if len(changes) > 1
        else first.key
    )
    was = fault_word(before.verdict) if before else "not in the older run"
    again = command and f"again: {command}"
    return "; ".join(
        filter(None, [f"{word} {one_line(named, 300)}: was {was}", difference(first), again])
    )


def difference(change: Change) -> str:
    """What differs besides the verdict: oracles, blame and reason of a failure, accuracy, time."""
    before = change.before
    after = change.after
    parts: list[str] = []
    if after.verdict not in ("pass", "caught"):
        if after.oracles:
            parts.append("by " + ", ".join(after.oracles))
        if after.blamed:
            parts.append("blame " + ", ".join(after.blamed))
        if after.note:
            parts.append(one_line(after.note, 200))
    if change.gain and before is not None:
        parts.append(f"accuracy {before.accuracy:.4f} -> {after.accuracy:.4f}")
    if change.took_another_time and before is not None:
        parts.append(f"{before.seconds:.2f} s -> {after.seconds:.2f} s")
    return "; ".join(parts)


def count_line(found: RunComparison) -> str:
    """How much was compared, and how much is unchanged."""
    parts = [
        f"{found.num_shared} in both runs",
        num(len(found.same_failures), "failure") + " as before",
    ]
    parts += (
        [num(found.num_same_known, "known failure") + " as before"] if found.num_same_known else []
    )
    parts += [f"{found.num_new} only in the newer"] if found.num_new else []
    parts += [f"{found.num_gone} only in the older"] if found.num_gone else []
    return ", ".join(parts)


def flaky_line(case: CaseTrend) -> str:
    """How often a case ended differently in runs that were alike; empty for one that is not
    flaky.
    """
    if case.flaky is None:
        return ""
    counts = ", ".join(f"{count} {verdict}" for verdict, count in case.flaky.verdicts.items())
    runs = f"{num(case.flaky.num_runs, 'run')} of the same code and seed"
    return (
        f"{one_line(case.key, 200)}: {counts} in {runs} ({case.flaky.num_mixed} of"
        f" {case.flaky.num_groups} commits)"
    )


def _has_runs(console: Console, found: Trends) -> bool:
    """Whether there is a run to print.

    Prints a line when there is none, or when older runs are left out.
    """
    if not found.runs:
        console.print("no run in the history matches; see `mla-harness history`")
    elif len(found.runs) > MAX_ROWS:
        console.print(f"the newest {MAX_ROWS} of {len(found.runs)} runs (--json has all)")
    return bool(found.runs)


def _print_changing(console: Console, name: str, found: Trends) -> None:
    # Faults have lines of their own.
    of_faults = {LETTERS[outcome] for outcome in FAULT_VERDICTS}
    cases = [case for case in found.cases if not set(case.verdicts) & of_faults]
    changing = [
        case
        for case in cases
        if len(set(case.verdicts) - {".", "s"}) > 1 or set(case.verdicts) & {*"fcek"}
    ]
    steady = len(cases) - len(changing)
    if changing:
        table = _table("case", _legend(changing), "median s")
        for case in changing[:MAX_LISTED]:
            known = [seconds for seconds in case.seconds if seconds is not None]
            median = f"{statistics.median(known):.2f}" if known else ""
            letters = (
                (letter, _STYLES.get(letter, "dim")) for letter in case.verdicts[-MAX_LETTERS:]
            )
            table.add_row(printable(case.key.removeprefix(name)), Text.assemble(*letters), median)
        console.print(table)
        if len(changing) > MAX_LISTED:
            console.print(
                f"and {len(changing) - MAX_LISTED} more that did not always pass (--json has all)"
            )
    if steady:
        console.print(f"{num(steady, 'case')} passed or skipped in each of these runs")


def _print_flaky(console: Console, found: Trends) -> None:
    flaky = found.flaky
    if flaky:
        console.print(f"\nflaky: {len(flaky)}", style="bold yellow")
    _print_lines(console, [flaky_line(case) for case in flaky])


def _print_lines(console: Console, lines: Sequence[str]) -> None:
    for line in lines[:MAX_LISTED]:
        console.print("  " + line, soft_wrap=True)
    if len(lines) > MAX_LISTED:
        console.print(f"  and {len(lines) - MAX_LISTED} more (--json has all)")


def _describe(run: RunEntry) -> str:
    code = printable(run.source.words) or "commit not known"
    unfinished = run.num_planned - len(run.cases)
    never = f", {num(unfinished, 'case')} never ran" if unfinished > 0 else ""
    faults = f", {num(len(run.faults), 'fault')}" if run.faults else ""
    return (
        f"{run.run_id} ({code}): {num(len(run.cases), 'case')}{faults} in {run.seconds:.1f}"
        f" s{never}"
    )


def _place(run: RunEntry) -> tuple[str, str, str, str]:
    started = run.started[:16].replace("T", " ")
    return (
        printable(run.run_id),
        printable(started),
        printable(run.source.short_commit),
        one_line(run.source.branch, 24),
    )


def _legend(cases: Sequence[CaseTrend]) -> str:
    seen = {
        verdict
        for verdict, letter in LETTERS.items()
        if any(letter in case.verdicts for case in cases)
    }
    letters = ", ".join(f"{LETTERS[verdict]} {verdict}" for verdict in shown_verdicts(seen))
    return f"oldest run first: {letters}, . not run"


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _table(*columns: str) -> Table:
    widths = {name: len(name) for name in _NUMBERS} | _LEAST_WIDTHS
    return table(*columns, no_wrap={*columns} - {"branch"}, numbers=_NUMBERS, widths=widths)
