"""Geometry of the trends: verdicts, time and accuracy of each scenario over the runs that the history holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median

from harness.report.wording import num
from harness.store.history.entry import RunEntry
from harness.store.history.trends import ABSENT, LETTERS, CaseTrend, FaultTrend, ScenarioTrend, Trends

WIDTH, HEIGHT = 150, 30
PAD = 4
WORDS = {letter: verdict for verdict, letter in LETTERS.items()} | {ABSENT: "not run"}
"""A letter of a case's verdicts -> its word."""
NOTABLE = 1.25
"""A time is noted when it is this many times the median of earlier runs, or below the inverse."""
MIN_USUAL = 5
"""Earlier runs that a time is compared with; with fewer, none is noted."""


@dataclass(frozen=True, slots=True)
class Spark:
    """A line over the runs, without axes: its last value is written beside it."""

    path: str
    x: float
    y: float
    last: str
    note: str
    description: str
    width: int = WIDTH
    height: int = HEIGHT


@dataclass(frozen=True, slots=True)
class Bar:
    """One run's verdicts of a scenario, in the units of the strip."""

    x: float
    width: float
    css: str
    title: str


@dataclass(frozen=True, slots=True)
class TrendLine:
    """One scenario, or one fault in one case."""

    name: str
    detail: str
    bars: tuple[Bar, ...]
    description: str
    seconds: Spark | None
    accuracy: Spark | None
    width: int = WIDTH
    height: int = HEIGHT


@dataclass(frozen=True, slots=True)
class TrendView:
    lines: tuple[TrendLine, ...]
    fault_lines: tuple[TrendLine, ...]
    trends: Trends
    has_known: bool
    """Whether a run has a known failure."""


def trend_view(trends: Trends | None) -> TrendView | None:
    """What the page shows of `trends`; None when there is no earlier run to compare with."""
    if trends is None or len(trends.runs) < 2:
        return None
    return TrendView(
        lines=tuple(_line(scenario, trends.runs) for scenario in trends.scenarios),
        fault_lines=tuple(_fault_line(fault, trends.runs) for fault in trends.faults),
        trends=trends,
        has_known=any(run.totals.get("known") for run in trends.runs),
    )


def past_of(trend: CaseTrend, runs: Sequence[RunEntry]) -> str:
    """One sentence on a case's earlier runs: how often it passed, and since when it has its present verdict."""
    ran = [(letter, run) for letter, run in zip(trend.verdicts, runs, strict=True) if letter != "."]
    if len(ran) < 2:
        return "not run before"
    passed = sum(letter == "p" for letter, _ in ran[:-1])
    last = ran[-1][0]
    *_, streak = [[run for _, run in group] for _, group in groupby(ran, key=lambda pair: pair[0])]
    text = f"passed in {passed} of {num(len(ran) - 1, 'run')} before this one"
    if len(streak) == len(ran):
        return f"{text}; {WORDS[last]} in all of them"
    first = streak[0]
    commit = f", commit {first.source.short_commit}" if first.source.commit else ""
    return f"{text}; {WORDS[last]} since {first.run_id}{commit}" if len(streak) > 1 else f"{text}; {WORDS[last]} is new"


def _line(trend: ScenarioTrend, runs: Sequence[RunEntry]) -> TrendLine:
    step = WIDTH / len(runs)
    bars = []
    for place, run in enumerate(runs):
        failed, passed, skipped = trend.num_failed[place], trend.num_passed[place], trend.num_skipped[place]
        known = trend.num_known[place]
        worst = {"fail": failed, "known": known, "pass": passed, "skip": skipped}
        css = next((verdict for verdict, count in worst.items() if count), None)
        if css is None:
            continue
        title = f"{run.started[:16]} {run.source.short_commit}: {passed} passed, {failed} not, {skipped} skipped"
        title += f", {known} known" if known else ""
        bars.append(_bar(place, step, css, title))
    return TrendLine(
        name=trend.scenario,
        detail="",
        bars=tuple(bars),
        description=_summary(Counter(bar.css for bar in bars)),
        seconds=_seconds(trend.seconds),
        accuracy=_accuracy(trend.accuracies),
    )


def _summary(counts: Counter[str]) -> str:
    """How many runs of a scenario were not clean. `counts` has the runs by their worst verdict."""
    many = num(counts.total(), "run")
    if counts["fail"]:
        return f"not all passed in {counts['fail']} of {many}"
    return f"known failures in {counts['known']} of {many}" if counts["known"] else f"clean in {many}"


def _fault_line(trend: FaultTrend, runs: Sequence[RunEntry]) -> TrendLine:
    step = WIDTH / len(runs)
    words = {"y": ("pass", "caught"), "n": ("fail", "not caught")}
    bars = []
    for place, (letter, run) in enumerate(zip(trend.outcomes, runs, strict=True)):
        if letter in words:
            css, word = words[letter]
            bars.append(_bar(place, step, css, f"{run.started[:16]} {run.source.short_commit}: {word}"))
    many, missed = num(len(bars), "run"), trend.outcomes.count("n")
    description = f"not caught in {missed} of {many}" if missed else f"caught in {many}"
    return TrendLine(trend.fault, trend.case, tuple(bars), description, _seconds(trend.seconds), None)


def _bar(place: int, step: float, css: str, title: str) -> Bar:
    return Bar(round(place * step, 2), round(max(step - 1, 1), 2), css, title)


def _seconds(values: Sequence[float | None]) -> Spark | None:
    known = [value for value in values if value is not None]
    if len(known) < 2 or values[-1] is None:
        return None
    usual, last = median(known[:-1]), known[-1]
    ratio = last / usual if usual > 0 else 1.0
    is_notable = len(known) > MIN_USUAL and (ratio > NOTABLE or ratio < 1 / NOTABLE)
    note = f"{ratio:.1f} times the usual" if is_notable else ""
    return _spark(values, low=0.0, last=f"{last:.1f} s", note=note)


def _accuracy(values: Sequence[float | None]) -> Spark | None:
    known = [value for value in values if value is not None]
    if not known or values[-1] is None:
        return None
    before = known[:-1]
    note = f"{known[-1] - median(before):+.4f}" if before and known[-1] != median(before) else ""
    return _spark(values, low=0.0, last=f"{known[-1]:.4f}", note=note, high=1.0)


def _spark(values: Sequence[float | None], *, low: float, last: str, note: str, high: float | None = None) -> Spark:
    """A polyline; runs without a value leave a gap."""
    top = high if high is not None else max(value for value in values if value is not None) or 1.0
    step = (WIDTH - 2 * PAD) / max(1, len(values) - 1)
    parts, is_down, x, y = [], False, 0.0, 0.0
    for place, value in enumerate(values):
        if value is None:
            is_down = False
            continue
        x = round(PAD + place * step, 1)
        y = round(PAD + (top - value) / (top - low) * (HEIGHT - 2 * PAD), 1)
        parts.append(f"{'L' if is_down else 'M'}{x:g} {y:g}")
        is_down = True
    known = [value for value in values if value is not None]
    description = f"{num(len(known), 'run')}, from {min(known):.4g} to {max(known):.4g}, last {last}"
    return Spark("".join(parts), x, y, last, note, description)
