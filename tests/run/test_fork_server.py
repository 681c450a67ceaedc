"""Children that begin as forks of a process with everything imported."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import HarnessError
from harness.core.params import Record
from harness.run.child import Child, ChildDied
from harness.run.fork_server import ForkServer
from tests.waiting import HANG_SECONDS

CHILD = """
import os, sys, time, signal
from harness.core.params import Record
from harness.run.protocol import answer_once

class Question(Record):
    what: str

def answer(question):
    print("printed by", question.what)
    if question.what == "die":
        os.kill(os.getpid(), signal.SIGSEGV)
    if question.what == "hang":
        time.sleep(3600)
    return {"group": os.getpgrp(), "pid": os.getpid(), "slow": "slow_to_import" in sys.modules,
            "setting": os.environ.get("SETTING", ""), "imported": os.environ.get("IMPORTED"), "arguments": sys.argv[1:],
            "folder": os.getcwd()}

if __name__ == "__main__":
    answer_once(Question, answer)
"""  # noqa: E501


class Question(Record):
    what: str


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("modules")
    (path / "slow_to_import.py").write_text(
        "import os, time\nos.environ['IMPORTED'] = 'set'\ntime.sleep(0.3)\n"
    )
    (path / "touches_cuda.py").write_text(
        "import sys, types\nsys.modules['torch'] ="
        " types.SimpleNamespace(cuda=types.SimpleNamespace(is_initialized=lambda: True))\n"
    )
    (path / "asked_child.py").write_text(CHILD)
    return path


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ForkServer]:
    started = ForkServer(
        ["slow_to_import"],
        name="the imports",
        environ={"PYTHONPATH": str(folder)},
        seconds=HANG_SECONDS,
    )
    yield started
    started.close()


def ask(
    server: ForkServer,
    what: str,
    seconds: float = HANG_SECONDS,
    log: Path | None = None,
    **environ: str,
) -> Any:
    with Child(
        "asked_child", "word", name="the fork", environ=environ, log=log, forks=server
    ) as child:
        child.send(Question(what=what), seconds)
        return child.answer().result


def test_each_fork_has_its_own_process_group_environment_arguments_and_log(
    server: ForkServer, tmp_path: Path
) -> None:
    first = ask(server, "one", log=tmp_path / "one.log", SETTING="a")
    second = ask(server, "two", log=tmp_path / "two.log", SETTING="b")
    assert (first["setting"], second["setting"]) == ("a", "b") and first["pid"] != second["pid"]
    assert all(
        found["slow"] and found["group"] == found["pid"] != os.getpgrp()
        for found in (first, second)
    )
    assert first["arguments"] == ["word"]
    assert (tmp_path / "one.log").read_text() == "printed by one\n"
    assert (tmp_path / "two.log").read_text() == "printed by two\n"


def test_a_fork_has_the_variables_that_the_imports_set_unless_it_is_given_others(
    server: ForkServer,
) -> None:
    assert ask(server, "plain")["imported"] == "set"
    assert ask(server, "given", IMPORTED="given")["imported"] == "given"
    assert ask(server, "plain again")["imported"] == "set"


@pytest.mark.parametrize(
    ("what", "cause"), [("die", "SIGSEGV"), ("hang", "no answer within 0.5 s")]
)
def test_a_fork_that_dies_or_hangs_is_reported_and_the_server_goes_on(
    what: str, cause: str, server: ForkServer
) -> None:
    with pytest.raises(ChildDied) as died:
        ask(server, what, seconds=0.5 if what == "hang" else HANG_SECONDS)
    assert died.value.death.cause == cause
    assert ask(server, "after")["slow"]


def test_several_forks_run_at_one_time_in_the_folder_of_who_asked_and_each_has_its_exit_code(
    server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    slow, dying, quick = (Child("asked_child", name="the fork", forks=server) for _ in range(3))
    with slow, dying, quick:
        slow.send(Question(what="hang"), HANG_SECONDS)
        dying.send(Question(what="die"), HANG_SECONDS)
        quick.send(Question(what="quick"), HANG_SECONDS)
        found = quick.answer().result
        assert found is not None and found["folder"] == str(tmp_path)
        with pytest.raises(ChildDied) as died:
            dying.receive()
        assert died.value.death.cause == "SIGSEGV" and quick.wait(HANG_SECONDS) == 0
        assert slow.wait(0.0) is None


def test_a_fork_dies_with_its_server(folder: Path) -> None:
    server = ForkServer(
        [], name="the imports", environ={"PYTHONPATH": str(folder)}, seconds=HANG_SECONDS
    )
    with Child("asked_child", name="the fork", forks=server) as child:
        child.send(Question(what="hang"), HANG_SECONDS)
        time.sleep(0.5)
        server.close()
        with pytest.raises(ChildDied):
            child.receive()
    assert server.is_dead()


@pytest.mark.parametrize(
    ("module", "words"),
    [("touches_cuda", "initialized CUDA"), ("no_such_module", "No module named")],
)
def test_a_server_that_cannot_fork_safely_does_not_start(
    module: str, words: str, folder: Path
) -> None:
    with pytest.raises(HarnessError, match=words):
        ForkServer(
            [module], name="the imports", environ={"PYTHONPATH": str(folder)}, seconds=HANG_SECONDS
        )
