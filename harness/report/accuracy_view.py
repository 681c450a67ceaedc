"""What the page draws of one measurement of accuracy: the curve by epoch, the grid of questions,
and accuracy by place and by length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from markupsafe import Markup

from harness.accuracy.acceptance import Drafts
from harness.accuracy.cache_hits import Hits
from harness.core.cause_codes import Code
from harness.core.records import AccuracyRecord, EpochAccuracy
from harness.report import plot
from harness.report.answers import (
    AnsweredQuestion,
    StoredAnswers,
    questions_of,
    shares_by_length,
    shares_by_position,
)

KINDS = {"0": "wrong", "p": "unusable", "e": "unusable", "i": "unusable", "u": "unusable"}
"""A mark of the grid -> how its cell is drawn. Right answers and unasked questions are not."""
MOST_CELLS = 40_000
"""Cells of a drawn grid. Beyond that a page would be slow, and the table of questions has them."""


@dataclass(frozen=True, slots=True)
class GridData:
    """What the script of the page makes its list and its view of a question from."""

    rows: tuple[str, ...]
    """Marks as in an :class:`OutcomeGrid`, a text for each epoch."""
    baseline: str
    changed: tuple[str, ...] = ()
    """For each epoch `1` at each question whose text is not the first epoch's, else `0`."""
    asked: dict[int, AnsweredQuestion] | None = None
    """Questions by number, from 1; None for a case that stored no answers."""


@dataclass(frozen=True, slots=True)
class AccuracyView:
    """One measurement with its drawings. `owner` is the anchor of its case or fault."""

    owner: str
    record: AccuracyRecord
    curve: Markup
    grid: Markup
    parts: list[tuple[str, Markup]]
    """Title and drawing: what the server counted by epoch, then accuracy by place in the epoch and
    by length of the answer.
    """
    data: GridData


def view_of(
    owner: str,
    record: AccuracyRecord,
    answers: StoredAnswers | None = None,
    drafts: dict[int, Drafts] | None = None,
    hits: dict[int, Hits] | None = None,
) -> AccuracyView:
    """The drawings of `record`. `answers` are those of its run, if it stored them."""
    found = record.grid
    rows = [row for row in (found.baseline, *found.rows) if row]
    is_small = sum(map(len, rows)) <= MOST_CELLS
    parts = [*_counted(drafts or {}, hits or {})]
    data = GridData(found.rows, found.baseline)
    if answers is not None:
        by_place = shares_by_position(answers)
        by_length = shares_by_length(answers)
        if by_place:
            title = "Accuracy by the question's place in its epoch"
            parts.append((title, plot.bars(by_place, title)))
        if by_length:
            title = "Accuracy by the length of the answer in tokens"
            parts.append((title, plot.bars(by_length, title)))
        data = GridData(found.rows, found.baseline, _changed(answers), questions_of(answers))
    return AccuracyView(
        owner,
        record,
        _curve(record),
        plot.grid(rows, KINDS, _grid_title(record)) if is_small and rows else Markup(""),
        parts,
        data,
    )


def _changed(answers: StoredAnswers) -> tuple[str, ...]:
    run = answers.run
    epochs = [run.changed(number) for number in range(1, run.header.num_epochs + 1)]
    return tuple(
        "".join("1" if name in changed else "0" for name in run.header.questions)
        for changed in epochs
    )


def _curve(record: AccuracyRecord) -> Markup:
    marked = {reason.epoch for reason in record.judgement.kinds if reason.cause == Code.DROP}
    points = [
        plot.Point(
            float(epoch.epoch),
            str(epoch.epoch),
            epoch.accuracy,
            *epoch.interval,
            is_marked=epoch.epoch in marked,
            says=_says(epoch),
        )
        for epoch in record.epochs
        # An epoch that was not asked has no accuracy; a point at 0 would read as one.
        if epoch.num_questions
    ]
    levels = []
    if record.baseline:
        base = record.baseline
        levels.append(plot.Level("baseline", base.accuracy, "baseline", base.interval))
    if record.judgement.least is not None:
        levels.append(plot.Level("least allowed", record.judgement.least, "least"))
    if not points:
        return Markup("")
    shown = ", ".join(f"epoch {point.label} {point.share:.4f}" for point in points)
    return plot.curve(points, levels, f"Accuracy by epoch: {shown}")


def _says(epoch: EpochAccuracy) -> str:
    low, high = epoch.interval
    return (
        f"epoch {epoch.epoch}: {epoch.accuracy:.4f} ({low:.4f} to {high:.4f}),"
        f" {epoch.num_correct:,} of {epoch.num_questions:,} right"
    )


def _counted(drafts: dict[int, Drafts], hits: dict[int, Hits]) -> Iterator[tuple[str, Markup]]:
    """What the server counted in each epoch: accepted drafts, and hits in the prefix cache."""
    accepted = {
        epoch: (one.share, f"{one.accepted:,} of {one.drafted:,} drafted tokens accepted")
        for epoch, one in drafts.items()
        if one.drafted
    }
    found = {
        epoch: (one.share, f"{one.hit:,} of {one.queried:,} prompt tokens were in the prefix cache")
        for epoch, one in hits.items()
        if one.queried
    }
    titled = {
        "Share of drafted tokens that were accepted, by epoch": accepted,
        "Share of prompt tokens that the prefix cache had, by epoch": found,
    }
    for title, shares in titled.items():
        points = [
            plot.Point(float(epoch), str(epoch), share, share, share, says=f"epoch {epoch}: {says}")
            for epoch, (share, says) in shares.items()
        ]
        if points:
            yield title, plot.curve(points, (), title)


def _grid_title(record: AccuracyRecord) -> str:
    count = len(record.grid.questions)
    with_baseline = "the baseline and " if record.grid.baseline else ""
    return (
        f"{count:,} questions from left to right; a row for {with_baseline}each of"
        f" {len(record.grid.rows)} epochs; wrong and unusable answers are coloured"
    )
