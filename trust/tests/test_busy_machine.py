"""The two programs that show whether something depends on how quick the machine is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import quick_clock
import stress

from tests.transcripts import Approved
from tests.waiting import HANG_SECONDS, wait_until, wait_until_gone


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize(("does", "code"), [("exit 7", 7), ("kill -TERM $$", 128 + 15)])
def test_the_exit_code_is_that_of_the_command(does: str, code: int) -> None:
    done = subprocess.run(
        [sys.executable, stress.__file__, "2", "--", "sh", "-c", does], timeout=HANG_SECONDS
    )
    assert done.returncode == code


def test_without_a_command_it_says_how_to_name_one(approved: Approved) -> None:
    done = subprocess.run(
        [sys.executable, stress.__file__, "2"], capture_output=True, text=True, timeout=HANG_SECONDS
    )
    assert done.returncode == 2
    approved(done.stderr)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_so_many_processes_spin_and_all_end_with_the_one_that_started_them_also_by_sigkill() -> (
    None
):
    command = [sys.executable, stress.__file__, "3", "--", "sh", "-c", "echo begun; read nothing"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "begun\n"
        spinning = children_of(process.pid)[:-1]
        assert len(spinning) == 3
        wait_until(
            lambda: all(ticks_of(pid) > 0 for pid in spinning),
            "all of them used the processor",
            process,
        )
        process.kill()
    for pid in spinning:
        wait_until_gone(pid)


def ticks_of(pid: int) -> int:
    """The processor time that a process has used, in ticks."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11])


HOURS = """
import asyncio, select, subprocess, sys, threading, time
begun = time.monotonic()
time.sleep(3600)
threading.Event().wait(3600)
select.select([], [], [], 3600)
select.poll().poll(3600_000)
asyncio.run(asyncio.sleep(3600))
try:
    subprocess.run(["sleep", "36000000"], timeout=3600)
except subprocess.TimeoutExpired:
    print("ended at its limit")
assert time.monotonic() - begun >= 6 * 3600
"""


@pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("cc") is None, reason="needs Linux and a C compiler"
)
@pytest.mark.skipif("QUICK_CLOCK_RATE" in os.environ, reason="a clock runs within another")
def test_six_hours_of_waiting_are_over_at_once_with_a_quick_clock() -> None:
    # At this rate an hour is a third of a second, and the child sleeps for an hour too.
    command = [sys.executable, quick_clock.__file__, "10000", "--", sys.executable, "-c", HOURS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert (done.returncode, done.stdout) == (0, "ended at its limit\n"), done.stderr
