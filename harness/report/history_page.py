"""`mla-harness history --html`: verdicts, seconds and accuracy from run to run, as one page.

The page needs no network. It links the reports of its runs by paths beside it, so that a folder of
runs with this page in it is a static site.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from harness.core.extras import why_not
from harness.core.records import BAD, Verdict
from harness.report import plot
from harness.report.page import environment_of_page, own_code
from harness.report.wording import num, printable
from harness.store.history.changes import FEWEST, change_points, level_after, level_before
from harness.store.history.entry import RunEntry
from harness.store.history.trends import CaseTrend, Trends

LEAST_ACCURACY = 0.02
"""The smallest step of accuracy that is marked: 26 of the 1,319 questions of GSM8K."""
LEAST_TIME = 1.25
"""The smallest step of the seconds of a run that is marked, as a factor."""
MAX_CURVES = 24
"""Measurements that the page draws, those with a step first."""
MAX_FLAKY = 40
OTHER_PAGES = {
    "compare": "what changed since the run before",
    "bisect": "cases by release",
}
"""First word of the name of a page that may stand beside this one -> what it shows."""
SHOWN = (Verdict.FAIL, Verdict.CRASH, Verdict.ERROR, Verdict.KNOWN, Verdict.PASS, Verdict.SKIP)


@dataclass(frozen=True, slots=True)
class ShownRun:
    """A run with its numbers of cases by verdict, and where its own page is; empty without one."""

    run: RunEntry
    counts: dict[str, int]
    page: str


def render(found: Trends, folder: Path, name: str = "") -> str:
    """The page of `found`, whose runs are oldest first, as it will stand in `folder`.

    `name` is the scenario or case that was asked for. Raises ValueError without any run.
    """
    if not found.runs:
        raise ValueError("no run")
    runs = [_shown(run, folder, name) for run in found.runs]
    verdicts = [word.value for word in SHOWN if any(one.counts.get(word.value) for one in runs)]
    # A short history has no steps, and needs no package to find them.
    missing = why_not(("ruptures",)) if len(runs) >= FEWEST else None
    steps: list[str] | None = None if missing else []
    seconds = _seconds(found.runs, steps)
    accuracy = _accuracy(found, steps)
    newest = runs[-1].counts
    num_bad = sum(newest.get(verdict.value, 0) for verdict in BAD)
    text: str = (
        environment_of_page()
        .get_template("history.html")
        .render(
            runs=runs,
            verdicts=verdicts,
            headline=_headline(num_bad, newest),
            newest_verdict="fail" if num_bad else "pass" if newest.get("pass") else "skip",
            name=name,
            steps=steps or (),
            without_steps=f"Steps are not marked: {missing.sentence}" if missing else "",
            drawn_verdicts=plot.stacked(
                [(_day(one.run), one.counts, one.run.run_id) for one in runs],
                verdicts,
                "Cases by verdict in each run",
            ),
            drawn_seconds=seconds,
            accuracy=accuracy,
            flaky=found.flaky[:MAX_FLAKY],
            others=other_pages(folder),
            **own_code(),
        )
    )
    return text


def other_pages(folder: Path) -> list[tuple[str, str]]:
    """File name and title of each page of `compare` or `bisect` in `folder`."""
    return [
        (file.name, f"{OTHER_PAGES[word]} ({file.stem})")
        for file in sorted(folder.glob("*.html"))
        if (word := file.stem.partition("-")[0]) in OTHER_PAGES
    ]


def _shown(run: RunEntry, folder: Path, name: str) -> ShownRun:
    cases = [one for one in run.cases if name in ("", one.key, one.scenario)]
    counts: dict[str, int] = {}
    for case in cases:
        counts[case.verdict] = counts.get(case.verdict, 0) + 1
    page = Path(run.folder) / "report.html"
    link = os.path.relpath(page, folder.resolve()) if run.folder and page.is_file() else ""
    return ShownRun(run, counts, link)


def _headline(num_bad: int, newest: dict[str, int]) -> str:
    if num_bad:
        return f"In the newest run {num(num_bad, 'case')} {'fails' if num_bad == 1 else 'fail'}"
    if newest.get("pass") == 1:
        return "In the newest run the one case that could be judged passes"
    if newest.get("pass"):
        return f"In the newest run all {num(newest['pass'], 'case')} that could be judged pass"
    return "In the newest run nothing was judged"


def _short(seconds: float) -> str:
    """`64 s`, or `0.7 s` where whole seconds would hide the step."""
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def _day(run: RunEntry) -> str:
    return run.started[5:10]


def _seconds(runs: Sequence[RunEntry], steps: list[str] | None) -> Markup:
    """Seconds of the runs as bars of the longest one; `steps` gets a sentence for each step."""
    longest = max((run.seconds for run in runs), default=0.0)
    if not longest:
        return Markup("")
    if steps is not None:
        # Times differ by factors, so that a step of a short run counts as one of a long run does.
        values = [max(run.seconds, 0.01) for run in runs]
        marked = change_points([math.log(value) for value in values], math.log(LEAST_TIME))
        for place in marked:
            first = runs[place]
            steps.append(
                f"Since run {first.run_id} ({_commit(first)}) a run takes"
                f" {_short(level_after(values, marked, place))}, before it took"
                f" {_short(level_before(values, marked, place))}"
            )
    rows = [
        (_day(run), run.seconds / longest, f"{run.run_id}: {run.seconds:.1f} s") for run in runs
    ]
    return plot.bars(rows, f"Seconds of each run, up to {longest:.0f}", top=f"{longest:.0f} s")


def _accuracy(found: Trends, steps: list[str] | None) -> list[tuple[str, Markup]]:
    """Title and curve of each measured case, those with a step first."""
    curves = []
    for case in found.cases:
        places = [place for place, value in enumerate(case.accuracies) if value is not None]
        # A fault is meant to lower accuracy, and one run is no curve.
        if "!" in case.key or len(places) < 2:
            continue
        values = [float(case.accuracies[place] or 0.0) for place in places]
        marked: list[int] = []
        if steps is not None:
            marked = change_points(values, LEAST_ACCURACY)
            steps += [_step(case, found.runs[places[at]], values, marked, at) for at in marked]
        points = [
            plot.Point(
                float(place),
                _day(found.runs[place]),
                value,
                value,
                value,
                is_marked=number in marked,
                says=f"{found.runs[place].run_id} ({_commit(found.runs[place])}): {value:.4f}",
            )
            for number, (place, value) in enumerate(zip(places, values, strict=True))
        ]
        title = f"Accuracy of {case.key} by run"
        curves.append((not marked, case.key, plot.curve(points, (), printable(title))))
    curves.sort(key=lambda one: one[:2])
    return [(key, drawing) for _, key, drawing in curves[:MAX_CURVES]]


def _step(
    case: CaseTrend, run: RunEntry, values: Sequence[float], marked: Sequence[int], at: int
) -> str:
    return (
        f"Since run {run.run_id} ({_commit(run)}) the accuracy of {case.key} is"
        f" {level_after(values, marked, at):.4f}, before it was"
        f" {level_before(values, marked, at):.4f} (medians)"
    )


def _commit(run: RunEntry) -> str:
    return f"commit {run.source.short_commit}" if run.source.commit else run.started[:10]
