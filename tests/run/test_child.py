"""One child process: what it answers, and what its parent says of every way in which it can end."""

from __future__ import annotations

import gc
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.core.cause_codes import Code
from harness.core.errors import HarnessError, InputError, NoRoomError
from harness.run import child as child_module
from harness.run.child import Child, ChildDied, ask
from tests.run.stub_child import Do
from tests.transcripts import Approved
from tests.waiting import (
    HANG_SECONDS,
    end_limits_when,
    wait_until,
    wait_until_gone,
    wait_until_group_is_gone,
)

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
STUB = {"PYTHONPATH": str(HERE)}
WRAPPER = ("sh", "-c", '"$@"; exit $?', "sh")
"""A program that runs another one and waits for it, as compute-sanitizer does."""
Start = Callable[..., Child]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start stub children that are closed after the test."""
    children: list[Child] = []

    def started(*arguments: str, **options: Any) -> Child:
        children.append(Child("stub_child", *arguments, name="the child", environ=STUB, **options))
        return children[-1]

    yield started
    for child in children:
        child.close()


def died(child: Child, what: str, seconds: float = HANG_SECONDS, text: str = "") -> ChildDied:
    """How the child ends that is asked for `what`."""
    child.send(Do(what=what, text=text), seconds)
    with pytest.raises(ChildDied) as caught:
        child.receive()
    return caught.value


def test_a_child_answers_one_request_after_another_and_what_it_prints_is_in_its_log(
    start: Start,
) -> None:
    child = start("first", "second")
    child.send(Do(what="print", text="noise " * 10_000))
    assert child.receive().result == {"arguments": ["first", "second"]}
    assert "noise noise" in child.log() and child.last_line() == "on standard error"
    child.empty_log()
    child.send(Do(what="progress"))
    assert child.receive().progress == {"done": 1} and child.receive().result is not None
    assert child.log() == ""


def test_a_log_that_was_emptied_begins_with_what_is_printed_next(start: Start) -> None:
    child = start()
    for _ in range(2):
        child.send(Do(what="print", text="new"))
        child.receive()
        assert child.log().split() == ["new", "on", "standard", "error"]
        child.empty_log()


def test_a_child_has_no_input_but_its_requests(start: Start) -> None:
    child = start()
    child.send(Do(what="read_input"))
    assert child.receive().result == {"read": ""}


def test_a_child_looks_for_garbage_after_its_imports_and_not_among_them(start: Start) -> None:
    child = start()
    child.send(Do(what="garbage"))
    assert child.receive().result == {"at_import": False, "now": True, "kept": True}


def test_a_log_with_a_name_stays_and_begins_anew(start: Start, tmp_path: Path) -> None:
    (tmp_path / "child.log").write_text("of another run\n")
    child = start(log=tmp_path / "child.log")
    child.send(Do(what="print", text="kept"))
    child.receive()
    child.close()
    log = (tmp_path / "child.log").read_text()
    assert log.startswith("kept\n") and "another run" not in log


@pytest.mark.parametrize(
    ("what", "cause", "sentence", "ended"),
    [
        (
            "exit",
            "exit code 7",
            "the child exited with code 7 in the middle of its work",
            "ended with exit code 7",
        ),
        ("segfault", "SIGSEGV", "the child died of SIGSEGV", "died (SIGSEGV)"),
        (
            "garble",
            "garbled answers",
            "the child's answers were garbled: something wrote to its protocol stream",
            None,
        ),
        (
            "close_replies",
            "closed protocol stream",
            "the child closed its protocol stream and was killed",
            None,
        ),
    ],
)
def test_how_a_child_died_is_told_in_words(
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    cause: str,
    sentence: str,
    ended: str | None,
) -> None:
    if what == "close_replies":
        # It never ends by itself, so nothing is won by waiting.
        monkeypatch.setattr(child_module, "END_SECONDS", 0.0)
    error = died(start(), what)
    assert str(error).endswith(f"died ({cause})")
    assert (error.death.cause, error.death.how) == (cause, sentence)
    assert error.death.ended == (ended or f"died ({cause})") and not error.death.is_hang


def test_a_child_that_dies_while_its_log_cannot_grow_is_a_full_disk(
    start: Start, monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    full = os.statvfs_result((4096, 4096, 10, 0, 0, 10, 10, 10, 0, 255))
    monkeypatch.setattr(os, "fstatvfs", lambda descriptor: full)
    child = start()
    child.send(Do(what="exit"))
    with approved.raises(NoRoomError):
        child.receive()


def test_the_log_of_a_crash_has_the_stack_and_the_last_line_is_the_childs_own(start: Start) -> None:
    child = start()
    error = died(child, "segfault")
    assert "Segmentation fault" in error.log and "stub_child.py" in error.log
    assert child.last_line() == "the last words"


def test_a_hang_is_killed_with_what_it_forked_and_the_log_shows_where_it_hung(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    end_limits_when(monkeypatch, child_module, (tmp_path / "pid").exists)
    child = start()
    error = died(child, "hang", 2.0, str(tmp_path / "pid"))
    assert error.death.seconds >= 2
    approved(error.death.cause)
    assert error.death.is_hang and error.death.as_cause == {"cause": Code.TIME_LIMIT}
    assert 'stub_child.py", line' in error.log and child.last_line() == "before the hang"
    wait_until_group_is_gone(int((tmp_path / "pid").read_text()))


def test_the_clock_begins_with_each_request_and_stops_with_the_answer(start: Start) -> None:
    child = start(seconds=HANG_SECONDS)
    child.send(Do(what="pid"), HANG_SECONDS)
    child.receive()
    child.send(Do(what="pid"), 0.0)
    select.select([child], [], [])
    child.read()
    assert not child.ended(), "an answer that is there is no hang"
    assert child.receive().result and child.receive().result
    assert not child.ended()


def test_a_child_that_dies_after_its_answer_has_answered(start: Start) -> None:
    child = start()
    child.send(Do(what="abort_late"))
    assert child.receive().result == {}
    assert child.wait(HANG_SECONDS) == -signal.SIGTERM
    assert child.ended() and child.death().cause == "SIGTERM"
    assert not child.send(Do(what="pid")), "nothing can be asked of the dead"


@pytest.mark.parametrize(
    ("what", "error", "words", "code"),
    [
        ("refuse", InputError, "^no such thing$", 2),
        ("fail", HarnessError, "^the server is gone$", 3),
        ("raise", HarnessError, r"^ValueError: not foreseen; traceback in .*\.traceback\.txt$", 3),
        ("sys_exit", HarnessError, r"^SystemExit: 5; traceback in", 3),
        ("nan", HarnessError, "^ValueError: .* not JSON compliant.*; traceback in", 3),
    ],
)
def test_what_a_child_raises_is_one_sentence_and_its_exit_code(
    start: Start,
    what: str,
    error: type[HarnessError],
    words: str,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    child = start()
    child.send(Do(what=what))
    with pytest.raises(error, match=words) as caught:
        child.answer()
    assert not isinstance(caught.value, ChildDied)
    assert child.wait(HANG_SECONDS) == code
    kept = [path.read_text() for path in tmp_path.glob("*.traceback.txt")]
    assert [str(caught.value).partition(";")[0] in text for text in kept] == [True] * (
        "; traceback" in words
    )


def test_one_question_is_one_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    seen: list[dict[str, Any]] = []
    request = Do(what="progress")
    assert ask("stub_child", request, name="the child", environ=STUB, on_progress=seen.append) == {
        "arguments": []
    }
    assert seen == [{"done": 1}]
    with pytest.raises(InputError, match="no such thing"):
        ask("stub_child", Do(what="refuse"), name="the child", environ=STUB)
    with approved.raises(HarnessError) as caught:
        ask("stub_child", Do(what="segfault"), name="the child", environ=STUB)
    assert "Segmentation fault" in Path(str(caught.value).rpartition(" ")[2]).read_text()


def test_what_does_not_start_says_why(start: Start, approved: Approved) -> None:
    with approved.raises(HarnessError):
        start(python="no/such/python")
    with Child("no_such_module", name="the child") as child:
        error = died(child, "pid")
        assert error.death.cause == "exit code 1" and "no_such_module" in child.last_line()


def test_a_folder_called_harness_where_somebody_stands_is_not_imported(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "harness").mkdir()
    (tmp_path / "harness" / "__init__.py").write_text(
        "raise RuntimeError('a folder of another project')\n"
    )
    monkeypatch.chdir(tmp_path)
    child = start()
    child.send(Do(what="pid"))
    assert child.receive().result


def test_closing_frees_descriptors_and_leaves_nothing_in_the_temporary_folder(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    # What an earlier test left is closed now, not while this one counts.
    gc.collect()
    before = os.listdir("/proc/self/fd")
    child = start()
    child.send(Do(what="pid"))
    result = child.receive().result
    child.close()
    child.close()
    assert result is not None
    wait_until_gone(result["pid"])
    assert os.listdir("/proc/self/fd") == before and not list(tmp_path.iterdir())


PARENT = """
import sys, time
from harness.run.child import Child
from stub_child import Do
child = Child("stub_child", name="the child", prefix=sys.argv[2:])
child.send(Do(what=sys.argv[1]))
print(child.receive().result["pid"], flush=True)
time.sleep(3600)
"""


@pytest.mark.parametrize(
    ("what", "prefix"),
    [("pid", ()), ("pid", WRAPPER), ("own_child", ())],
    ids=["own", "wrapped", "of a child"],
)
def test_a_child_does_not_outlive_a_parent_that_is_killed(
    what: str, prefix: tuple[str, ...]
) -> None:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE)])}
    command = [sys.executable, "-c", PARENT, what, *prefix]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert Path(f"/proc/{pid}").exists()
        parent.kill()
    wait_until_gone(pid)


STARTS_AN_IMPORT = """
import math, os, sys, time
from harness.run.child import Child
from harness.run.fork_server import ForkServer
forks = ForkServer([], name="the server", environ={}, seconds=math.inf) if sys.argv[1] == "forked" else None
child = Child("imports_long", name="the child", prefix=sys.argv[2:], environ=dict(os.environ), forks=forks)
time.sleep(3600)
"""  # noqa: E501
IMPORTS_LONG = "import os, time\nos.symlink(str(os.getpid()), 'importing')\ntime.sleep(3600)\n"


@pytest.mark.parametrize(
    ("how", "prefix"),
    [("own", ()), ("wrapped", WRAPPER), ("forked", ())],
    ids=["own", "wrapped", "forked"],
)
def test_a_child_that_still_imports_does_not_outlive_a_parent_that_is_killed(
    how: str, prefix: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "imports_long.py").write_text(IMPORTS_LONG)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    with subprocess.Popen(
        [sys.executable, "-c", STARTS_AN_IMPORT, how, *prefix], env=environ, cwd=tmp_path
    ) as parent:
        wait_until((tmp_path / "importing").is_symlink, "the child imported", parent)
        parent.kill()
    wait_until_gone(int(os.readlink(tmp_path / "importing")))


def test_a_program_around_the_interpreter_passes_requests_and_answers_on(start: Start) -> None:
    child = start("argument", prefix=WRAPPER)
    child.send(Do(what="print", text="noise"))
    assert child.receive().result == {"arguments": ["argument"]}
    child.send(Do(what="pid"))
    result = child.receive().result
    child.close()
    assert result is not None
    wait_until_gone(result["pid"])
