"""Plain SVG for the pages: a curve with intervals, bars, and a grid of marks.

A page is one file without a network and without inline styles, so a drawing is markup that the
page's own style sheet colours. Every text in it is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from harness.report.wording import printable

WIDTH = 640
HEIGHT = 230
LEFT = 52
RIGHT = 14
TOP = 14
BOTTOM = 34
GRID_COLUMNS = 200
"""Questions in one band of a grid. More of them would be thinner than a pixel on a phone."""
CELL = 5
LETTER = 6.5
"""The width of a letter of a label."""
BAND_GAP = 8


@dataclass(frozen=True, slots=True)
class Point:
    """One measured share: its place on the x axis, its label there, and its interval."""

    x: float
    label: str
    share: float
    low: float
    high: float
    is_marked: bool = False
    """Drawn as a finding: an epoch with a significant drop, or the step of a change."""
    says: str = ""
    """The text that a pointer shows."""


@dataclass(frozen=True, slots=True)
class Level:
    """A horizontal line with a word at its right end: a baseline, or the least share allowed."""

    name: str
    share: float
    css: str
    interval: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """The points of one run in a drawing of several, and the CSS class of its colour and dashes."""

    css: str
    points: Sequence[Point]


SERIES = ("s1", "s2", "s3", "s4", "s5", "s6")
"""The classes of the runs in one drawing; more of them could not be told apart."""
BESIDE = 9
"""How far apart the points of two runs stand at one place, so that their intervals are seen."""


def curve(points: Sequence[Point], levels: Sequence[Level], title: str) -> Markup:
    """Shares from 0 to 1 over epochs or runs, with their intervals."""
    return curves([Series(SERIES[0], points)], levels, title)


def curves(series: Sequence[Series], levels: Sequence[Level], title: str) -> Markup:
    """The shares of several runs over the same epochs, beside each other.

    The axis starts below the lowest value that is shown, because 0.91 and 0.90 look alike on an
    axis from 0.
    """
    every = [point for one in series for point in one.points]
    shown = [point.low for point in every] + [level.share for level in levels]
    ticks = axis_of(min(shown, default=0.0))
    parts = [_axes(ticks)]
    parts += [_level(level, ticks[0]) for level in levels]
    for number, one in enumerate(series):
        # Runs stand side by side at each epoch, or equal shares would hide each other.
        beside = BESIDE * (number - (len(series) - 1) / 2)
        places = [(_x(point.x, every) + beside, _y(point.share, ticks[0])) for point in one.points]
        if len(places) > 1:
            line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            parts.append(Markup('<polyline class="line {}" points="{}"/>').format(one.css, line))
        for point, (x, y) in zip(one.points, places, strict=True):
            parts.append(_point(point, x, y, ticks[0], one.css))
    labels = {_x(point.x, every): point.label for point in every}
    parts += _labels(sorted(labels.items()))
    return _drawing(parts, title, WIDTH, HEIGHT, "plot")


def bars(shares: Sequence[tuple[str, float, str]], title: str, top: str = "") -> Markup:
    """A bar for each (label, share from 0 to 1, text that a pointer shows).

    `top` is what a share of 1 stands for, if the shares are of something else than questions.
    """
    parts = [_text(LEFT - 8, TOP + 4, top, "end") + _rule(TOP)] if top else [_axes(axis_of(0.0))]
    room = (WIDTH - LEFT - RIGHT) / max(len(shares), 1)
    base = _y(0.0, 0.0)
    for number, (_, share, says) in enumerate(shares):
        x = LEFT + room * number + 3
        y = _y(share, 0.0)
        parts.append(
            Markup(
                '<rect class="bar-of" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>'
            ).format(f"{x:.1f}", f"{y:.1f}", f"{room - 6:.1f}", f"{base - y:.1f}", printable(says))
        )
    parts += _labels(_middles([label for label, _, _ in shares]))
    return _drawing(parts, title, WIDTH, HEIGHT, "plot")


def stacked(
    columns: Sequence[tuple[str, dict[str, int], str]], kinds: Sequence[str], title: str
) -> Markup:
    """A column for each (label, count of each kind, name): the counts of `kinds` on each other, the
    first one at the bottom.
    """
    most = max((sum(counts.values()) for _, counts, _ in columns), default=0) or 1
    parts = [_text(LEFT - 8, TOP + 4, f"{most:,}", "end") + _rule(TOP)]
    room = (WIDTH - LEFT - RIGHT) / max(len(columns), 1)
    # Many narrow columns would be all gap.
    gap = min(6.0, room / 4)
    for number, (_, counts, name) in enumerate(columns):
        x = LEFT + room * number + gap / 2
        y = _y(0.0, 0.0)
        said = ", ".join(f"{counts[kind]} {kind}" for kind in kinds if counts.get(kind))
        for kind in kinds:
            height = (HEIGHT - TOP - BOTTOM) * counts.get(kind, 0) / most
            y -= height
            if height:
                parts.append(
                    Markup(
                        '<rect class="part {}" x="{}" y="{}" width="{}" height="{}">'
                        "<title>{}</title></rect>"
                    ).format(
                        kind,
                        f"{x:.1f}",
                        f"{y:.2f}",
                        f"{room - gap:.1f}",
                        f"{height:.2f}",
                        printable(f"{name}: {said}"),
                    )
                )
    parts += _labels(_middles([label for label, _, _ in columns]))
    return _drawing(parts, title, WIDTH, HEIGHT, "plot")


def grid(rows: Sequence[str], kinds: dict[str, str], title: str) -> Markup:
    """A cell for each mark: a row for each text of `rows`, a column for each of its characters.

    `kinds` gives the CSS class of a mark. A mark without one is not drawn, so that the many that
    are right cost nothing. Columns break into bands of GRID_COLUMNS.
    """
    num_columns = max((len(row) for row in rows), default=0)
    num_bands = math.ceil(num_columns / GRID_COLUMNS)
    band_height = len(rows) * CELL + BAND_GAP
    parts = []
    width = min(num_columns, GRID_COLUMNS) * CELL
    for band in range(num_bands):
        columns = min(GRID_COLUMNS, num_columns - band * GRID_COLUMNS)
        parts.append(
            Markup('<rect class="cells" x="0" y="{}" width="{}" height="{}"/>').format(
                band * band_height, columns * CELL, len(rows) * CELL
            )
        )
    # One path for all cells of a kind: a rectangle each would be megabytes at 14,000 cases.
    for mark, css in kinds.items():
        path = "".join(
            f"M{column % GRID_COLUMNS * CELL} {column // GRID_COLUMNS * band_height + row * CELL}"
            f"h{CELL - 1}v{CELL - 1}h-{CELL - 1}z"
            for row, marks in enumerate(rows)
            for column, own in enumerate(marks)
            if own == mark
        )
        if path:
            parts.append(Markup('<path class="{}" d="{}"/>').format(css, path))
    return _drawing(parts, title, max(width, 1), max(num_bands * band_height, 1), "grid")


def axis_of(lowest: float) -> list[float]:
    """Five round ticks from at most `lowest` to 1."""
    for start in (0.96, 0.9, 0.8, 0.6):
        if lowest >= start:
            step = (1 - start) / 4
            return [start + step * n for n in range(5)]
    return [0.0, 0.25, 0.5, 0.75, 1.0]


def _x(x: float, points: Sequence[Point]) -> float:
    first = min(point.x for point in points)
    last = max(point.x for point in points)
    room = WIDTH - LEFT - RIGHT - 40
    return LEFT + 20 + (room * (x - first) / (last - first) if last > first else room / 2)


def _y(share: float, lowest: float) -> float:
    room = HEIGHT - TOP - BOTTOM
    return TOP + room * (1 - (min(max(share, lowest), 1.0) - lowest) / (1 - lowest))


def _axes(ticks: Sequence[float]) -> Markup:
    parts = []
    for tick in ticks:
        y = _y(tick, ticks[0])
        parts.append(_rule(y))
        parts.append(_text(LEFT - 8, y + 4, f"{tick:.2f}", "end"))
    return Markup("").join(parts)


def _rule(y: float) -> Markup:
    return Markup('<line class="rule" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(
        LEFT, WIDTH - RIGHT, f"{y:.1f}", f"{y:.1f}"
    )


def _level(level: Level, lowest: float) -> Markup:
    y = f"{_y(level.share, lowest):.1f}"
    band = Markup("")
    if level.interval:
        top = _y(level.interval[1], lowest)
        height = _y(level.interval[0], lowest) - top
        band = Markup('<rect class="band" x="{}" y="{}" width="{}" height="{}"/>').format(
            LEFT, f"{top:.1f}", WIDTH - LEFT - RIGHT, f"{height:.1f}"
        )
    line = Markup('<line class="{}" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(
        level.css, LEFT, WIDTH - RIGHT, y, y
    )
    # Below the line where it is near the top, so that the word stays in the drawing.
    below = 12 if float(y) < TOP + 14 else -4
    return band + line + _text(WIDTH - RIGHT, float(y) + below, level.name, "end")


def _point(point: Point, x: float, y: float, lowest: float, css: str) -> Markup:
    at = f"{x:.1f}"
    whisker = Markup('<line class="whisker {}" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(
        css, at, at, f"{_y(point.high, lowest):.1f}", f"{_y(point.low, lowest):.1f}"
    )
    css = "dot marked" if point.is_marked else f"dot {css}"
    says = printable(point.says or f"{point.label}: {point.share:.4f}")
    dot = Markup('<circle class="{}" cx="{}" cy="{}" r="4.5"><title>{}</title></circle>')
    return whisker + dot.format(css, at, f"{y:.1f}", says)


def _middles(labels: Sequence[str]) -> list[tuple[float, str]]:
    """Each label with the middle of its column, of columns that fill the width."""
    room = (WIDTH - LEFT - RIGHT) / max(len(labels), 1)
    return [(LEFT + room * (number + 0.5), label) for number, label in enumerate(labels)]


def _labels(placed: Sequence[tuple[float, str]]) -> list[Markup]:
    """The labels below a drawing that fit beside each other: each of a few, every n-th of many."""
    longest = max((len(label) for _, label in placed), default=1)
    fitting = max(2, int((WIDTH - LEFT - RIGHT) / (LETTER * longest + LETTER)))
    every = math.ceil(len(placed) / fitting) or 1
    return [_text(x, HEIGHT - 12, label, "middle") for x, label in placed[::every]]


def _text(x: float, y: float, words: str, anchor: str) -> Markup:
    return Markup('<text x="{}" y="{}" text-anchor="{}">{}</text>').format(
        f"{x:.1f}", f"{y:.1f}", anchor, printable(words)
    )


def _drawing(parts: Sequence[Markup], title: str, width: int, height: int, css: str) -> Markup:
    head = Markup('<svg class="{}" viewBox="0 0 {} {}" role="img" aria-label="{}">')
    end = Markup("</svg>")
    return head.format(css, width, height, printable(title)) + Markup("").join(parts) + end
