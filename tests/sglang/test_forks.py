"""Processes that are forked first and told later what to run."""

from __future__ import annotations

import os
from multiprocessing.connection import Connection

import pytest

from harness.engines.sglang.serve.forks import stand_in


def answer(pipe: Connection, *, word: str) -> None:
    pipe.send((word, os.environ.get("SET_AFTER_THE_FORK"), os.getpid()))


def test_a_fork_runs_what_it_is_sent_with_the_environment_of_then(monkeypatch: pytest.MonkeyPatch) -> None:
    mp = stand_in(1)
    monkeypatch.setenv("SET_AFTER_THE_FORK", "yes")
    ours, theirs = mp.Pipe()
    process = mp.Process(target=answer, args=(theirs,), kwargs={"word": "hello"})
    assert process.is_alive() and process.pid
    process.start()
    assert ours.recv() == ("hello", "yes", process.pid)
    process.join()
    assert process.exitcode == 0
