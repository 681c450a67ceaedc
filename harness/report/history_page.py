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
from harness.core.fault_outcomes import CAUGHT, MISSED, WRONG_BLAME
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
LEAST_COVERAGE = 0.005
"""The smallest step of the share of pairs or triples that is marked."""
MAX_CURVES = 24
"""Measurements that the page draws, those with a step first."""
MAX_FLAKY = 40
OTHER_PAGES = {
    "compare": "what changed since the run before",
    "bisect": "cases by release",
}
"""First word of the name of a page that may stand beside this one -> what it shows."""
SHOWN = (Verdict.FAIL, Verdict.CRASH, Verdict.ERROR, Verdict.KNOWN, Verdict.PASS, Verdict.SKIP)
OUTCOMES = (MISSED, WRONG_BLAME, CAUGHT)
STRENGTHS = ("pairs", "triples")


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
    # A short history has no steps, and needs no package to find them.
    missing = why_not(("ruptures",)) if len(runs) >= FEWEST else None
    steps: list[str] | None = None if missing else []
    # A self-test has other cases and takes another time, so it has curves of its own.
    selftests = [one for one in runs if one.run.is_selftest]
    judged = [one for one in runs if not one.run.is_selftest] or runs
    drawings = _drawings(found, judged, selftests, steps, is_whole=not name)
    headline, verdict = _headline(judged[-1].counts, selftests[-1].run if selftests else None)
    text: str = (
        environment_of_page()
        .get_template("history.html")
        .render(
            runs=runs,
            headline=headline,
            newest_verdict=verdict,
            name=name,
            steps=steps or (),
            without_steps=f"Steps are not marked: {missing.sentence}" if missing else "",
            flaky=found.flaky[:MAX_FLAKY],
            others=other_pages(folder),
            **drawings,
            **own_code(),
        )
    )
    return text


def _drawings(
    found: Trends,
    judged: Sequence[ShownRun],
    selftests: Sequence[ShownRun],
    steps: list[str] | None,
    *,
    is_whole: bool,
) -> dict[str, object]:
    """The drawings of the page, and the words of their keys; `steps` gets a sentence for each step
    in them. Without all cases of the runs, coverage is not drawn.
    """
    every = [*judged, *selftests]
    verdicts = [word.value for word in SHOWN if any(one.counts.get(word.value) for one in every)]
    columns = [(_day(one.run), one.counts, one.run.run_id) for one in judged]
    return {
        "verdicts": verdicts,
        "drawn_verdicts": plot.stacked(columns, verdicts, "Cases by verdict in each run"),
        "drawn_seconds": _seconds([one.run for one in judged], steps),
        "strengths": list(zip(plot.SERIES, STRENGTHS, strict=False)),
        "covered": _covered([one.run for one in judged], steps) if is_whole else "",
        "outcomes": OUTCOMES,
        "drawn_faults": _faults([one.run for one in selftests]),
        "accuracy": _accuracy(found, steps),
    }


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


def _headline(newest: dict[str, int], selftest: RunEntry | None) -> tuple[str, str]:
    """What became of the newest run and of the newest self-test, and the verdict of both."""
    num_bad = sum(newest.get(verdict.value, 0) for verdict in BAD)
    told = _told_cases(num_bad, newest)
    verdict = "fail" if num_bad else "pass" if newest.get("pass") else "skip"
    if not selftest:
        return told, verdict
    is_missed = selftest.num_caught < len(selftest.faults)
    caught = f"{selftest.num_caught} of {num(len(selftest.faults), 'injected bug')} caught"
    return f"{told}; {caught}", "fail" if is_missed else verdict


def _told_cases(num_bad: int, newest: dict[str, int]) -> str:
    if num_bad:
        return f"In the newest run {num(num_bad, 'case')} {'fails' if num_bad == 1 else 'fail'}"
    if newest.get("pass") == 1:
        return "In the newest run the one case that could be judged passes"
    if newest.get("pass"):
        return f"In the newest run all {num(newest['pass'], 'case')} that could be judged pass"
    return "In the newest run nothing was judged"


def _faults(runs: Sequence[RunEntry]) -> Markup:
    """What became of the injected bugs of each self-test."""
    if not runs:
        return Markup("")
    columns = []
    for run in runs:
        outcomes = [entry.verdict for entry in run.faults]
        columns.append((_day(run), {one: outcomes.count(one) for one in OUTCOMES}, run.run_id))
    return plot.stacked(columns, OUTCOMES, "Injected bugs of each self-test by outcome")


def _covered(runs: Sequence[RunEntry], steps: list[str] | None) -> Markup:
    """Shares of pairs and triples of conditions that the passing calls of each run showed."""
    places = [place for place, run in enumerate(runs) if run.shares]
    if not places:
        return Markup("")
    series = []
    for number, word in enumerate(STRENGTHS):
        values = [(runs[place].shares or (0.0, 0.0))[number] for place in places]
        marked = change_points(values, LEAST_COVERAGE) if steps is not None else []
        if steps is not None:
            steps += [_new_share(word, runs[places[at]], values, marked, at) for at in marked]
        points = [
            plot.Point(
                float(place),
                _day(runs[place]),
                value,
                value,
                value,
                is_marked=at in marked,
                says=f"{runs[place].run_id}: {100 * value:.1f} % of the {word}",
            )
            for at, (place, value) in enumerate(zip(places, values, strict=True))
        ]
        series.append(plot.Series(plot.SERIES[number], points))
    return plot.curves(series, (), "Pairs and triples of conditions that passing calls showed")


def _new_share(
    word: str, run: RunEntry, values: Sequence[float], marked: Sequence[int], at: int
) -> str:
    return (
        f"Since run {run.run_id} ({_commit(run)}) passing calls show"
        f" {100 * level_after(values, marked, at):.1f} % of the {word}, before they showed"
        f" {100 * level_before(values, marked, at):.1f} %"
    )


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
