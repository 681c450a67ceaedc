"""Accuracy in a terminal: a live line while a model is asked, and a table with an interval for each epoch."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from harness.core.records import AccuracyRecord, EpochAccuracy
from harness.report.wording import accuracy_title, describe_faulty, model_sentence, one_line, printable

MAX_RECORDS = 30
SHOWN_EPOCHS = 20


def progress_bar(console: Console) -> Progress:
    """A bar with a count, the time and a note. It shows nothing without a terminal."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


class EpochProgress:
    """A bar for the epoch that runs; without a terminal, a line at the end of each epoch."""

    def __init__(self, console: Console, num_epochs: int) -> None:
        self._console = console
        self._num_epochs = num_epochs
        self._progress = progress_bar(console)
        self._task = self._progress.add_task(f"epoch 1 of {num_epochs}", total=None, note="")
        self._ended: set[int] = set()

    def __enter__(self) -> EpochProgress:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._progress.stop()

    def update(self, state: dict[str, int]) -> None:
        """Show the progress in `state`."""
        epoch, answered, total = state["epoch"], state["answered"], state["num_questions"]
        share = f"accuracy {state['num_correct'] / answered:.4f}"
        note = share + (f", {state['unanswered']} unanswered" if state["unanswered"] else "")
        description = f"epoch {epoch} of {self._num_epochs}"
        self._progress.update(self._task, description=description, completed=answered, total=total, note=note)
        if answered == total and epoch not in self._ended:
            self._ended.add(epoch)
            self._console.print(f"{description}: {total:,} questions, {note}{_speed(state)}", soft_wrap=True)


def _speed(state: dict[str, int]) -> str:
    tokens, seconds = state.get("num_tokens", 0), state.get("milliseconds", 0) / 1e3
    return f", {tokens:,} tokens in {seconds:.2f} s, {tokens / seconds:,.0f} a second" if tokens and seconds else ""


def print_accuracy(console: Console, records: Sequence[AccuracyRecord]) -> None:
    """Print the epochs of each record with their intervals, and the judgement."""
    for record in records[:MAX_RECORDS]:
        console.print(Text(one_line(accuracy_title(record), 300), style="bold"), soft_wrap=True)
        if sentence := model_sentence(record):
            console.print("  " + one_line(sentence), soft_wrap=True)
        console.print(_table(record))
        if record.judgement.statement:
            console.print(" " + one_line(record.judgement.statement, 1000) + "\n", soft_wrap=True)
    if len(records) > MAX_RECORDS:
        console.print(f"and {len(records) - MAX_RECORDS} more measurements of accuracy in results.csv\n")


def _table(record: AccuracyRecord) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=True)
    for name in ("epoch", "right", "accuracy", "95 % interval", "lost", "gained", "p", "changed"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("not usable", overflow="fold")
    if use := record.baseline:
        table.add_row("baseline", f"of {use.num_shared:,}", f"{use.accuracy:.4f}", _interval(use.interval))
    for epoch in record.epochs[:SHOWN_EPOCHS]:
        table.add_row(*_row(epoch))
    if len(record.epochs) > SHOWN_EPOCHS:
        table.add_row("…", f"{len(record.epochs) - SHOWN_EPOCHS} more")
    return table


def _row(epoch: EpochAccuracy) -> tuple[str, ...]:
    if not epoch.num_questions:
        return (str(epoch.epoch), "not asked")
    flips = epoch.flips
    compared = (str(flips.lost), str(flips.gained), f"{flips.p_value:.2g}") if flips else ("·", "·", "·")
    return (
        str(epoch.epoch),
        f"{epoch.num_correct:,} of {epoch.num_questions:,}",
        f"{epoch.accuracy:.4f}",
        _interval(epoch.interval),
        *compared,
        str(epoch.changed),
        printable(describe_faulty(epoch)),
    )


def _interval(interval: tuple[float, float]) -> str:
    return f"{interval[0]:.4f} to {interval[1]:.4f}"
