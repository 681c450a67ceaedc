"""What a command shows while it works where no terminal moves a line: a line now and then, whatever
it waits for.
"""

from __future__ import annotations

import errno
import io
import threading

import pytest

from harness.core.cases import Case, Job
from harness.core.records import CaseResult, Verdict
from harness.report import progress
from harness.report.console import console_for
from harness.report.progress import EpochProgress, LiveProgress, Waiting
from tests.waiting import HANG_SECONDS


class Log(io.StringIO):
    """A log of CI, in which a test waits for lines."""

    def __init__(self) -> None:
        super().__init__()
        self._written = threading.Condition()

    def write(self, text: str) -> int:
        with self._written:
            count = super().write(text)
            self._written.notify_all()
        return count

    def wait_for(self, text: str) -> None:
        with self._written:
            assert self._written.wait_for(lambda: text in self.getvalue(), timeout=300), (
                self.getvalue()
            )


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Pool:
    num_done, latest = 4, ""


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.001)


def job(name: str) -> Job:
    return Job(key=name, case=Case(id=name, scenario="stub", system="kernel", op="write_kv"))


def test_a_command_that_waits_says_what_for_and_how_many_cases_ran() -> None:
    log, pool = Log(), Pool()
    with Waiting(console_for(log), "looking for a failing case", pool) as live:
        log.wait_for("looking for a failing case: 0 cases run, 0 s so far\n")
        pool.num_done, pool.latest = 7, "stub[n=7]"
        log.wait_for("looking for a failing case: 3 cases run, 0 s so far; now stub[n=7]\n")
        live.update("trying smaller cases: x is 1")
        log.wait_for("trying smaller cases: x is 1: 3 cases run, ")
    ended = log.getvalue()
    assert log.getvalue() == ended and "loading: 0 s so far\n" not in ended
    with Waiting(console_for(log), "loading"):
        log.wait_for("loading: 0 s so far\n")


def test_a_run_says_what_runs_while_no_case_ends() -> None:
    log = Log()
    with LiveProgress(console_for(log), 3) as live:
        log.wait_for("0 of 3 cases after 0 s: starting workers\n")
        live.on_start(job("stub[n=1]"))
        log.wait_for("0 of 3 cases after 0 s: stub[n=1]\n")
        live.on_start(job("stub[n=2]"))
        live.on_result(CaseResult.of(job("stub[n=1]"), Verdict.PASS))
        log.wait_for("1 of 3 cases after 0 s: pass 1; now stub[n=2]\n")


def test_epochs_say_how_far_they_are_before_one_ends() -> None:
    log = Log()
    state = {"epoch": 2, "answered": 12, "num_questions": 1319, "num_correct": 9, "unanswered": 0}
    with EpochProgress(console_for(log), 5) as live:
        log.wait_for("epoch 1 of 5: no answer yet, after 0 s\n")
        live.update(state)
        log.wait_for("epoch 2 of 5: 12 of 1,319 questions, accuracy 0.7500, after 0 s\n")
        live.update({"repeats": 16})
        live.update(state | {"answered": 1319, "tokens": 0, "seconds": 1})
        log.wait_for("epoch 2 of 5: 1,319 questions, accuracy 0.0068")
        log.wait_for("epoch 2 of 5: ended, after 0 s\n")
        live.update({"repeats": 16})
        log.wait_for("asking 16 prompts twice, one at a time, after 0 s\n")


@pytest.mark.parametrize("moves", [True, False], ids=["a terminal", "a debugger"])
def test_nothing_is_printed_below_a_line_that_moves_and_into_a_debugger(moves: bool) -> None:
    terminal = Terminal()
    for shown in (Waiting, lambda console, what: LiveProgress(console, 3)):
        with shown(console_for(terminal, moves=moves), "waiting") as live:
            assert [
                one for one in threading.enumerate() if one.name.startswith("progress")
            ] == [], live
    assert "so far" not in terminal.getvalue() and "cases after" not in terminal.getvalue()


def test_an_output_without_room_ends_no_command() -> None:
    class Full(io.StringIO):
        tried = threading.Event()

        def write(self, text: str) -> int:
            self.tried.set()
            raise OSError(errno.ENOSPC, "No space left on device")

    full = Full()
    with Waiting(console_for(full), "waiting"):
        assert full.tried.wait(timeout=HANG_SECONDS)
