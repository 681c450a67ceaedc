"""Geometry of the two pictures of an accuracy run: accuracy by epoch, and the outcome of each question."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby

from harness.core.records import AccuracyRecord, EpochAccuracy, OutcomeGrid

WIDTH, HEIGHT = 420, 240
LEFT, RIGHT, TOP, BOTTOM = 58, 18, 26, 40
FLOORS = (0.99, 0.98, 0.95, 0.9, 0.8, 0.5, 0.0)
CEILINGS = (0.05, 0.1, 0.2, 0.5, 1.0)
NUM_TICKS = 5
MAX_LABELS = 7

COLUMNS = 110
"""Questions in one line of the grid."""
CELL = 10
LINE_GAP = 14
MARKS = {
    "1": ("right", "right"),
    "0": ("wrong", "wrong"),
    "p": ("unparsed", "did not parse"),
    "e": ("empty", "empty"),
    "i": ("invalid", "invalid tokens"),
    "u": ("unanswered", "unanswered"),
    ".": ("missing", "not asked"),
}
"""A mark of the grid -> its CSS class and its words."""
MAX_FLIPPED = 40

Scale = Callable[[float], float]
"""A value to its height on the chart."""


@dataclass(frozen=True, slots=True)
class Point:
    """One epoch on the chart, in the units of its view box."""

    epoch: int
    x: float
    y: float
    low: float
    high: float
    text: str
    has_label: bool


@dataclass(frozen=True, slots=True)
class Band:
    """The baseline: its interval as a band, its accuracy as a line."""

    y: float
    low: float
    high: float
    text: str


@dataclass(frozen=True, slots=True)
class Chart:
    """Accuracy by epoch with 95 % intervals."""

    points: tuple[Point, ...]
    ticks: tuple[tuple[float, str], ...]
    """The height and the text of each line across the chart."""
    band: Band | None
    line: str
    is_cut: bool
    """The axis does not begin at 0."""
    title: str
    description: str
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT


@dataclass(frozen=True, slots=True)
class Grid:
    """The outcome of each question in each epoch."""

    width: int
    height: int
    strips: tuple[tuple[str, str], ...]
    """The cells of each kind: CSS class and a path of horizontal strokes, which dashes cut into cells."""
    labels: tuple[tuple[float, str], ...]
    """The height and the text of each line's heading."""
    legend: tuple[tuple[str, str, int], ...]
    """CSS class, words and count of each kind."""
    rows: tuple[str, ...]
    flipped: tuple[tuple[int, str, tuple[tuple[str, str], ...]], ...]
    """Questions with different outcomes: number, question, and CSS class and words for each row."""
    num_flipped: int
    title: str
    description: str


def chart(record: AccuracyRecord) -> Chart | None:
    """The chart of a record; None when no question was answered yet."""
    epochs = [epoch for epoch in record.epochs if epoch.num_questions]
    if not epochs:
        return None
    lows = [epoch.interval[0] for epoch in epochs]
    highs = [epoch.interval[1] for epoch in epochs]
    if record.baseline:
        lows.append(record.baseline.interval[0])
        highs.append(record.baseline.interval[1])
    floor = next(floor for floor in FLOORS if floor <= min(lows))
    ceiling = next(ceiling for ceiling in CEILINGS if ceiling >= max(highs)) if floor == 0.0 else 1.0
    height = HEIGHT - TOP - BOTTOM

    def y(value: float) -> float:
        return round(TOP + (ceiling - value) / (ceiling - floor) * height, 1)

    points = tuple(_points(record.epochs, y))
    return Chart(
        points=points,
        ticks=tuple(_ticks(floor, ceiling, y)),
        band=_band(record, y),
        line=" ".join(f"{point.x},{point.y}" for point in points),
        is_cut=floor > 0.0,
        title=f"Accuracy by epoch: {record.task} on {record.model}",
        description=_description(record, epochs),
    )


def _points(epochs: tuple[EpochAccuracy, ...], y: Scale) -> Iterator[Point]:
    step = (WIDTH - LEFT - RIGHT) / len(epochs)
    every = math.ceil(len(epochs) / MAX_LABELS)
    for number, epoch in enumerate(epochs):
        if epoch.num_questions:
            low, high = epoch.interval
            yield Point(
                epoch=epoch.epoch,
                x=round(LEFT + (number + 0.5) * step, 1),
                y=y(epoch.accuracy),
                low=y(low),
                high=y(high),
                text=f"{epoch.accuracy:.4f}",
                has_label=number % every == 0,
            )


def _ticks(floor: float, ceiling: float, y: Scale) -> Iterator[tuple[float, str]]:
    for number in range(NUM_TICKS + 1):
        value = floor + (ceiling - floor) * number / NUM_TICKS
        yield y(value), f"{value:.3f}".rstrip("0").rstrip(".") or "0"


def _band(record: AccuracyRecord, y: Scale) -> Band | None:
    use = record.baseline
    if use is None:
        return None
    return Band(y(use.accuracy), y(use.interval[0]), y(use.interval[1]), f"baseline {use.accuracy:.4f}")


def _description(record: AccuracyRecord, epochs: list[EpochAccuracy]) -> str:
    parts = [
        f"epoch {epoch.epoch}: {epoch.accuracy:.4f}, interval {epoch.interval[0]:.4f} to {epoch.interval[1]:.4f}"
        for epoch in epochs
    ]
    if use := record.baseline:
        parts.append(f"baseline {use.accuracy:.4f}, interval {use.interval[0]:.4f} to {use.interval[1]:.4f}")
    return "; ".join(parts) + "."


def grid(found: OutcomeGrid) -> Grid | None:
    """The grid of a record; None without a question."""
    names = (["baseline"] if found.baseline else []) + [f"epoch {n}" for n in range(1, len(found.rows) + 1)]
    rows = ([found.baseline] if found.baseline else []) + list(found.rows)
    if not found.questions or not rows:
        return None
    count = len(found.questions)
    columns = min(count, COLUMNS)
    num_lines = math.ceil(count / columns)
    pitch = len(rows) * CELL + LINE_GAP
    paths: dict[str, list[str]] = {mark: [] for mark in MARKS}
    for number, row in enumerate(rows):
        for line in range(num_lines):
            y = line * pitch + LINE_GAP + number * CELL + CELL // 2
            for mark, start, length in _runs(row[line * columns : (line + 1) * columns]):
                paths[mark].append(f"M{start * CELL} {y}h{length * CELL}")
    flipped = [number for number in range(count) if len({row[number] for row in rows} - {"."}) > 1]
    seen = [mark for mark in MARKS if paths[mark]]
    total = len(rows) * count
    wrong = total - sum(row.count("1") + row.count(".") for row in rows)
    return Grid(
        width=columns * CELL,
        height=num_lines * pitch,
        strips=tuple((MARKS[mark][0], "".join(paths[mark])) for mark in seen),
        labels=tuple(
            (line * pitch + LINE_GAP - 3, f"questions {line * columns + 1:,} to {min(count, (line + 1) * columns):,}")
            for line in range(num_lines)
        ),
        legend=tuple((*MARKS[mark], sum(row.count(mark) for row in rows)) for mark in seen),
        rows=tuple(names),
        flipped=tuple((n + 1, found.questions[n], tuple(MARKS[row[n]] for row in rows)) for n in flipped[:MAX_FLIPPED]),
        num_flipped=len(flipped),
        title=f"What became of {count:,} questions, a row each for {', '.join(names[:3])}"
        + (" and so on" if len(names) > 3 else ""),
        description=f"{wrong:,} of {total:,} cells are not right; {len(flipped):,} questions differ between rows.",
    )


def _runs(row: str) -> Iterator[tuple[str, int, int]]:
    """(mark, first cell, how many) of each run of equal marks."""
    start = 0
    for mark, group in groupby(row):
        length = sum(1 for _ in group)
        yield mark, start, length
        start += length
