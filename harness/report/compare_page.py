"""`mla-harness compare --html`: what changed between runs, and their accuracy beside each other.

The first run is what each other run is compared with: an older release, or the server that is
trusted. The page links the pages of the runs by paths beside it, as the page of the history does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from markupsafe import Markup

from harness.accuracy.acceptance import read_drafts
from harness.accuracy.cache_hits import read_hits
from harness.accuracy.judge import flips_between
from harness.core.records import AccuracyRecord, EpochAccuracy, Flips
from harness.core.systems import engine_versions
from harness.report import plot
from harness.report.meaning import where
from harness.report.page import environment_of_page, own_code
from harness.report.run_view import RunView
from harness.report.terminal_history import difference
from harness.report.wording import EPOCHS, describe_faulty, interval_text, num, printable
from harness.store.history.compare import Change, RunComparison
from harness.store.history.entry import RunEntry

MAX_ROWS = 100
"""Changes of one kind that the page lists; `compare --json` has all."""
MAX_MEASURED = 24
"""Measurements that are drawn beside each other."""


@dataclass(frozen=True, slots=True, eq=False)
class ShownRun:
    """A run in its row: a short name that no other run has, where it ran, and its own page."""

    label: str
    css: str
    entry: RunEntry
    view: RunView | None
    """None for a run whose summary alone is kept."""
    place: str
    page: str

    def link(self, key: str) -> str:
        """The address of a case on the page of this run; empty without a page."""
        return f"{self.page}#{quote(key)}" if self.page else ""


@dataclass(frozen=True, slots=True)
class Group:
    """Changes of one kind."""

    title: str
    css: str
    changes: Sequence[Change]


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """One measurement of accuracy in one run, beside those of the other runs."""

    run: ShownRun
    model: str
    lowest: EpochAccuracy
    interval: str
    num_epochs: int
    unusable: str
    drafts: str
    hits: str
    against: Flips | None
    """The first epoch against that of the first run, question by question."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The same measurement in several runs."""

    title: str
    drawings: list[tuple[str, Markup]]
    """Title and drawing: accuracy by epoch, and what the servers counted beside it."""
    rows: list[MeasuredRow]


def render(found: Sequence[RunComparison], views: dict[str, RunView], folder: Path) -> str:
    """The page of comparisons with one first run, as it will stand in `folder`.

    `views` has the runs that are stored in full, by their folder. Raises ValueError without a
    comparison.
    """
    if not found:
        raise ValueError("no comparison")
    # All comparisons have the same first run.
    runs = _shown([found[0].before, *(one.after for one in found)], views, folder)
    num_new = sum(len(one.new_failures) + sum(map(len, one.lost.values())) for one in found)
    compared = [
        (run, one, [group for group in _groups(one) if group.changes])
        for run, one in zip(runs[1:], found, strict=True)
    ]
    text: str = (
        environment_of_page()
        .get_template("compare.html")
        .render(
            runs=runs,
            compared=compared,
            measured=_measured(runs),
            headline=_headline(found, num_new),
            verdict="fail" if num_new else "pass",
            unlike=[run.label for run, one, _ in compared if not one.is_like_with_like],
            difference=difference,
            most=MAX_ROWS,
            **own_code(),
        )
    )
    return text


def _shown(entries: Sequence[RunEntry], views: dict[str, RunView], folder: Path) -> list[ShownRun]:
    found = [views.get(entry.folder) for entry in entries]
    shown = []
    for number, (entry, view, label) in enumerate(
        zip(entries, found, _labels(entries, found), strict=True)
    ):
        page = Path(entry.folder) / "report.html"
        link = os.path.relpath(page, folder.resolve()) if page.is_file() else ""
        place = ", ".join(where(view, view.jobs.values())) if view else ""
        css = plot.SERIES[number % len(plot.SERIES)]
        shown.append(ShownRun(label, css, entry, view, place, link))
    return shown


def _labels(entries: Sequence[RunEntry], views: Sequence[RunView | None]) -> list[str]:
    """The first of these that tells all runs apart: release, server or model, commit, run id."""
    # A label must tell what a reader changed between the runs, so the release comes first.
    kinds: list[Callable[[RunEntry, RunView | None], str]] = [
        lambda entry, view: ", ".join(
            f"{name} {version}" for name, version in engine_versions(_environment(view)).items()
        ),
        lambda entry, view: _model(view),
        lambda entry, view: entry.source.short_commit,
    ]
    for kind in kinds:
        names = [kind(entry, view) for entry, view in zip(entries, views, strict=True)]
        if all(names) and len({*names}) == len(names):
            return [printable(name) for name in names]
    return [printable(entry.run_id) for entry in entries]


def _environment(view: RunView | None) -> dict[str, object]:
    return view.plan.environment if view else {}


def _model(view: RunView | None) -> str:
    """The server or model of a run of `epochs`; empty for other runs."""
    if view is None:
        return ""
    asked = view.plan.options.get("epochs") or {}
    return (
        str(asked.get("model") or "")
        .removeprefix("server:")
        .removeprefix("http://")
        .removesuffix("/v1")
    )


def _headline(found: Sequence[RunComparison], num_new: int) -> str:
    num_fixed = sum(len(one.fixed) for one in found)
    fixed = f", {num_fixed} fixed" if num_fixed else ""
    if num_new:
        return f"{num(num_new, 'case')} got worse{fixed}"
    return f"No case got worse{fixed}"


def _groups(found: RunComparison) -> list[Group]:
    """What matters most first. Lost cases stand apart: they have a reason, and no new result."""
    return [
        Group("New failures", "fail", found.new_failures),
        Group("Failing in another way", "fail", found.other_failures),
        Group("Failing as before", "fail", found.same_failures),
        Group("Known failures that are new", "known", found.known),
        Group("Fixed", "pass", found.fixed),
        Group("No longer judged", "skip", found.not_judged),
        Group("Accuracy changed", "error", found.accuracy),
        Group("Time changed", "skip", found.time),
    ]


def _measured(runs: Sequence[ShownRun]) -> list[Measured]:
    """Each measurement that two runs or more have, with a curve and a row for each of them."""
    found: dict[str, list[tuple[ShownRun, AccuracyRecord]]] = {}
    for run in runs:
        for record in run.view.accuracy if run.view else ():
            found.setdefault(_subject(record), []).append((run, record))
    # A measurement of one run alone has nothing to be compared with.
    shared = [(title, own) for title, own in found.items() if len(own) > 1]
    return [
        Measured(title, _drawings(own), [_row(run, record, own[0][1]) for run, record in own])
        for title, own in shared[:MAX_MEASURED]
    ]


def _subject(record: AccuracyRecord) -> str:
    """What is measured alike in two runs: a task for `epochs`, whatever model answers; else a
    case.
    """
    # Two servers are two models, and the reader compares them by the task.
    subject = record.task if record.scenario == EPOCHS else record.case
    return f"{subject}, with fault {record.fault}" if record.fault else subject


def _drawings(own: Sequence[tuple[ShownRun, AccuracyRecord]]) -> list[tuple[str, Markup]]:
    title = "Accuracy by epoch, with the 95 % interval"
    accuracy = {
        run: [
            plot.Point(
                float(epoch.epoch),
                str(epoch.epoch),
                epoch.accuracy,
                *epoch.interval,
                says=f"{run.label}, epoch {epoch.epoch}: {epoch.accuracy:.4f}",
            )
            for epoch in record.epochs
            if epoch.num_questions
        ]
        for run, record in own
    }
    found = [(title, _together(accuracy, title))]
    for title, counts in _COUNTED.items():
        points = {run: _shares(run, counts) for run, record in own if record.scenario == EPOCHS}
        if any(points.values()):
            found.append((title, _together(points, title)))
    return found


def _together(points: Mapping[ShownRun, Sequence[plot.Point]], title: str) -> Markup:
    """The runs in one drawing, as many as can be told apart, with a text of all numbers."""
    series = [plot.Series(run.css, own) for run, own in points.items() if own]
    shown = "; ".join(
        f"{run.label} {', '.join(f'{point.share:.4f}' for point in own)}"
        for run, own in points.items()
        if own
    )
    return plot.curves(series[: len(plot.SERIES)], (), f"{title}: {shown}")


def _shares(run: ShownRun, counts: Callable[[Path], Mapping[int, float]]) -> list[plot.Point]:
    found = counts(run.view.path) if run.view else {}
    return [
        plot.Point(
            float(epoch),
            str(epoch),
            share,
            share,
            share,
            says=f"{run.label}, epoch {epoch}: {share:.3f}",
        )
        for epoch, share in found.items()
    ]


def _accepted(folder: Path) -> dict[int, float]:
    return {epoch: one.share for epoch, one in read_drafts(folder).items() if one.drafted}


def _hit(folder: Path) -> dict[int, float]:
    return {epoch: one.share for epoch, one in read_hits(folder).items() if one.queried}


_COUNTED = {
    "Share of drafted tokens that were accepted, by epoch": _accepted,
    "Share of prompt tokens that the prefix cache had, by epoch": _hit,
}
"""Title of a drawing -> epoch and share that the server counted, from the folder of a run."""


def _row(run: ShownRun, record: AccuracyRecord, first: AccuracyRecord) -> MeasuredRow:
    asked = [epoch for epoch in record.epochs if epoch.num_questions] or list(record.epochs)
    lowest = min(asked, key=lambda epoch: epoch.accuracy)
    # The same sentence in each epoch would hide the second kind of fault.
    unusable = list(dict.fromkeys(filter(None, map(describe_faulty, asked))))
    return MeasuredRow(
        run,
        f"{record.model} ({record.engine}, {record.dtype})",
        lowest,
        interval_text(lowest.interval),
        len(asked),
        "; ".join(unusable[:2]),
        _range([*_accepted(run.view.path).values()]) if run.view else "",
        _range([*_hit(run.view.path).values()]) if run.view else "",
        None if record is first else _against(first, record, run),
    )


def _range(shares: Sequence[float]) -> str:
    """The lowest and the highest of shares; empty without any."""
    if not shares:
        return ""
    low, high = f"{min(shares):.2f}", f"{max(shares):.2f}"
    return low if low == high else f"{low} to {high}"


def _against(first: AccuracyRecord, record: AccuracyRecord, run: ShownRun) -> Flips | None:
    """The answers of the first epochs, by question; None if the runs share no question."""
    before, after = (
        dict(zip(one.grid.questions, one.grid.rows[0], strict=True)) if one.grid.rows else {}
        for one in (first, record)
    )
    # A dot in the grid is a question that was not asked in that epoch.
    shared = [name for name in after if "." not in (after[name], before.get(name, "."))]
    if not shared:
        return None
    return flips_between(
        {name: before[name] == "1" for name in shared},
        {name: after[name] == "1" for name in shared},
        run.label,
    )
