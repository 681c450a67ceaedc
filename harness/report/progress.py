"""What a command shows while it works: a moving line in a terminal, and a line now and then where
nothing moves.

A log of CI has no moving line. There a thread prints a line every half minute, whatever the command
waits for: a worker that imports torch, a case that runs for minutes, a server. Silence would read
as a hang, and end the job.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from harness.core.cases import Job
from harness.core.records import BAD, CaseResult, Verdict
from harness.report.causes import symptom_of
from harness.report.terminal import failure_line
from harness.report.wording import num, one_line

SECONDS_BETWEEN_LINES = 30.0
"""Without a terminal, a line of progress is printed this often."""
MOST_OF_AN_ID = 50
"""Letters of the case that runs now."""


class RunsCases(Protocol):
    """What runs cases for a command, such as a pool."""

    num_done: int
    """Results of all cases so far."""
    latest: str
    """The id of the case that was started last."""


class _Shown:
    """Shows a line for the length of a `with`: a moving one in a terminal, else one now and then.

    In a terminal that shall not be disturbed, such as that of a debugger, it shows nothing.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started = time.monotonic()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def line(self) -> str:
        """What is printed where nothing moves."""
        raise NotImplementedError

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def start(self) -> None:
        """Begin to show."""

    def stop(self) -> None:
        """Show nothing more."""

    def __enter__(self) -> Self:
        self._started = time.monotonic()
        self.start()
        if not self._console.is_terminal and not self._console.file.isatty():
            self._thread = threading.Thread(target=self._print_lines, name="progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        self.stop()

    def _print_lines(self) -> None:
        while not self._ended.wait(SECONDS_BETWEEN_LINES):
            try:
                self._console.print(self.line, soft_wrap=True)
            except (OSError, ValueError):
                # No one reads any more, or there is no room. The command itself will say so.
                return


class Waiting(_Shown):
    """Shows `what` a command does, for how long, and how many cases its `pool` ran meanwhile."""

    def __init__(self, console: Console, what: str, pool: RunsCases | None = None) -> None:
        super().__init__(console)
        self._what = what
        self._pool = pool
        self._before = pool.num_done if pool else 0
        self._status = console.status(what)

    def update(self, what: str) -> None:
        """Something else is done now."""
        self._what = what
        self._status.update(what)

    @property
    def line(self) -> str:
        """`looking for a failing case: 3 cases run, 60 s so far; now fuzz[op=write_kv]`."""
        if self._pool is None:
            return f"{self._what}: {self.seconds:.0f} s so far"
        count = num(self._pool.num_done - self._before, "case")
        now = f"; now {one_line(self._pool.latest, MOST_OF_AN_ID)}" if self._pool.latest else ""
        return f"{self._what}: {count} run, {self.seconds:.0f} s so far{now}"

    def start(self) -> None:
        if self._console.is_terminal:
            self._status.start()

    def stop(self) -> None:
        if self._console.is_terminal:
            self._status.stop()


class _Bar(_Shown):
    """A bar with a count, the time and a note."""

    def __init__(
        self, console: Console, what: str, *, total: int | None = None, note: str = ""
    ) -> None:
        super().__init__(console)
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task(what, total=total, note=note)

    def start(self) -> None:
        self._progress.start()

    def stop(self) -> None:
        self._progress.stop()


class LiveProgress(_Bar):
    """A progress bar with counts while the cases run.

    Of failures that are alike, the first is printed at once, with `every_failure` each. The others
    are counted.
    """

    def __init__(self, console: Console, num_jobs: int, *, every_failure: bool = False) -> None:
        super().__init__(console, "cases", total=num_jobs, note="starting workers")
        self._every_failure = every_failure
        self._running: dict[str, str] = {}
        self._counts: Counter[str] = Counter()
        self._num_jobs = num_jobs
        self._seen: set[tuple[str, ...]] = set()

    @property
    def line(self) -> str:
        """`7 of 12 cases after 30 s: pass 6 fail 1; now fuzz[op=write_kv]`."""
        done = f"{self._counts.total()} of {self._num_jobs} cases after {self.seconds:.0f} s"
        now = f"; now {self._now}" if self._now else ""
        return (
            f"{done}: {self._by_verdict}{now}"
            if self._counts
            else f"{done}: {self._now or 'starting workers'}"
        )

    def on_start(self, job: Job) -> None:
        self._running[job.key] = job.case.id
        self._update(0)

    def on_result(self, result: CaseResult, *, announce: bool = True) -> None:
        """A job ended; a bad one is printed above the bar at once when `announce`."""
        self._running.pop(result.key, None)
        self._counts[result.verdict.value] += 1
        if announce and result.verdict in BAD and (self._is_new(result) or self._every_failure):
            self._console.print(failure_line(result), soft_wrap=True)
        self._update(1)

    def _is_new(self, result: CaseResult) -> bool:
        kernel = re.search(r"kernel=([^],]+)", result.id)
        kind = (kernel[1] if kernel else result.scenario, symptom_of(result))
        is_new = kind not in self._seen
        self._seen.add(kind)
        return is_new

    @property
    def _by_verdict(self) -> str:
        return " ".join(
            f"{verdict.value} {n}" for verdict in Verdict if (n := self._counts[verdict.value])
        )

    @property
    def _now(self) -> str:
        """The case that runs for the longest time."""
        # A copy, as the thread that prints lines reads while cases end.
        return one_line(next(iter(list(self._running.values())), ""), MOST_OF_AN_ID)

    def _update(self, advance: int) -> None:
        self._progress.update(self._task, advance=advance, note=f"{self._by_verdict}  {self._now}")


class EpochProgress(_Bar):
    """A bar for the epoch that runs, and a line at the end of each epoch."""

    def __init__(self, console: Console, num_epochs: int) -> None:
        super().__init__(console, f"epoch 1 of {num_epochs}")
        self._num_epochs = num_epochs
        self._ended_epochs: set[int] = set()
        self._line = f"epoch 1 of {num_epochs}: no answer yet"

    @property
    def line(self) -> str:
        """`epoch 2 of 5: 12 of 64 questions, accuracy 0.9167, after 60 s`."""
        return f"{self._line}, after {self.seconds:.0f} s"

    def update(self, state: dict[str, int]) -> None:
        """Show how far an epoch is, in the fields of :class:`harness.accuracy.epochs.Progress`.

        The state of what follows the epochs has only the number of prompts that are asked twice,
        `repeats`.
        """
        if "repeats" in state:
            self._line = f"asking {num(state['repeats'], 'prompt')} twice, one at a time"
            self._progress.update(
                self._task, description=self._line, completed=0, total=None, note=""
            )
            return
        epoch = state["epoch"]
        answered = state["answered"]
        total = state["num_questions"]
        share = f"accuracy {state['num_correct'] / answered:.4f}"
        note = share + (f", {state['unanswered']} unanswered" if state["unanswered"] else "")
        description = f"epoch {epoch} of {self._num_epochs}"
        self._line = f"{description}: {answered:,} of {total:,} questions, {note}"
        self._progress.update(
            self._task, description=description, completed=answered, total=total, note=note
        )
        if answered == total and epoch not in self._ended_epochs:
            self._ended_epochs.add(epoch)
            self._console.print(
                f"{description}: {total:,} questions, {note}{_speed(state)}", soft_wrap=True
            )
            # The line above said how it ended.
            self._line = f"{description}: ended"


def _speed(state: dict[str, int]) -> str:
    tokens = state.get("num_tokens", 0)
    seconds = state.get("milliseconds", 0) / 1e3
    return (
        f", {tokens:,} tokens in {seconds:.2f} s, {tokens / seconds:,.0f} a second"
        if tokens and seconds
        else ""
    )
