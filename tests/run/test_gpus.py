"""One worker a GPU: other sessions cannot lock a held GPU, and a GPU is free after it is given
back.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.core.errors import HarnessError
from harness.run import gpus
from harness.run.environment import Gpu
from harness.run.gpus import GpuLocks
from tests.waiting import HANG_SECONDS

TWO = tuple(
    Gpu(name="stub", capability="9.0", memory_bytes=1, uuid=f"uuid-{index}") for index in range(2)
)


def test_a_session_takes_each_gpu_once(tmp_path: Path) -> None:
    locks = GpuLocks(TWO, tmp_path)
    assert [locks.take(), locks.take(), locks.take()] == [(0,), (1,), ()]


def test_a_gpu_that_is_given_back_can_be_taken_again(tmp_path: Path) -> None:
    locks = GpuLocks(TWO, tmp_path)
    locks.take()
    locks.take()
    locks.give_back(0)
    assert locks.take() == (0,)


def test_two_sessions_never_hold_one_gpu(tmp_path: Path) -> None:
    ours, theirs = GpuLocks(TWO, tmp_path), GpuLocks(TWO, tmp_path)
    assert (ours.take(), theirs.take()) == ((0,), (1,))
    assert not ours.take() and not theirs.take()
    theirs.give_back(1)
    assert ours.take() == (1,)


def test_a_lock_is_the_gpus_own_whatever_number_a_session_sees_it_under(tmp_path: Path) -> None:
    ours, theirs = GpuLocks(TWO, tmp_path), GpuLocks(TWO[::-1], tmp_path)
    assert (ours.take(), theirs.take()) == ((0,), (0,))
    assert not ours.take()


def test_a_session_that_is_killed_leaves_its_gpu_free(tmp_path: Path) -> None:
    code = (
        "import os, sys, pathlib; from harness.run.environment import Gpu; from harness.run.gpus"
        " import GpuLocks\ngpu = Gpu(name='stub', capability='9.0', memory_bytes=1,"
        " uuid='uuid-0')\nprint(GpuLocks((gpu,), pathlib.Path(sys.argv[1])).take());"
        " sys.stdout.flush(); os.kill(os.getpid(), 9)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=HANG_SECONDS
    )
    assert done.stdout == "(0,)\n" and done.returncode == -9, done.stderr
    assert GpuLocks(TWO[:1], tmp_path).take() == (0,)


def test_waiting_for_others_ends_with_the_lock_files_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, ours = GpuLocks(TWO, tmp_path), GpuLocks(TWO, tmp_path)
    theirs.take()
    theirs.take()
    assert not ours.take()
    monkeypatch.setattr(gpus, "PATIENCE_SECONDS", -1.0)
    with pytest.raises(HarnessError, match=r"mla-harness-gpu-uuid-0\.lock"):
        ours.take()


def test_several_gpus_are_taken_together_or_not_at_all(tmp_path: Path) -> None:
    ours, theirs = GpuLocks(TWO, tmp_path), GpuLocks(TWO, tmp_path)
    theirs.take()
    assert ours.take(2) == ()
    # Nothing was kept while waiting: the other session can have the rest.
    assert theirs.take() == (1,)
    theirs.give_back(0)
    theirs.give_back(1)
    assert ours.take(2) == (0, 1)
    assert not theirs.take()


def test_waiting_for_several_gpus_ends_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, ours = GpuLocks(TWO, tmp_path), GpuLocks(TWO, tmp_path)
    theirs.take()
    monkeypatch.setattr(gpus, "PATIENCE_SECONDS", -1.0)
    with pytest.raises(HarnessError, match=r"mla-harness-gpu-uuid-1\.lock"):
        ours.take(2)
