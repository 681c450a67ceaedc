"""Children of several threads: an interruption ends those that run, and those that start just
then.
"""

from __future__ import annotations

import signal
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from harness.run.child import Child, ChildDied
from harness.run.children import Children, ChildrenEndedError, as_they_end
from tests.run.stub_child import Do
from tests.waiting import HANG_SECONDS, wait_until, wait_until_gone

STUB = {"PYTHONPATH": str(Path(__file__).parent)}


def stub() -> Child:
    return Child("stub_child", name="the child", environ=STUB)


def test_a_child_that_starts_while_all_are_ended_is_ended_too() -> None:
    children, pids = Children(), []

    def started_too_late() -> Child:
        child = stub()
        pids.append(child.pid)
        children.end()
        return child

    with pytest.raises(ChildrenEndedError, match="interrupted"), children.running(started_too_late):
        pytest.fail("the child is asked although all were ended")
    wait_until_gone(pids[0])


def test_a_thread_that_waits_for_a_child_sees_the_end_of_all() -> None:
    children, began = Children(), []

    def ask() -> str:
        with children.running(stub) as child:
            began.append(child.pid)
            with pytest.raises(ChildDied):
                # It has no request, so it says nothing.
                child.receive()
        return "ended"

    with ThreadPoolExecutor(2) as threads:
        asked = [threads.submit(ask) for _ in range(2)]
        wait_until(lambda: len(began) == 2, "both wait")
        children.end()
        assert [one.result(HANG_SECONDS) for one in asked] == ["ended", "ended"]
    for pid in began:
        wait_until_gone(pid)


def test_a_child_that_has_answered_is_closed_and_not_ended_again() -> None:
    children = Children()
    with children.running(stub) as child:
        child.send(Do(what="progress"))
        assert child.receive().progress == {"done": 1}
    children.end()
    assert children.are_ended


def test_an_interruption_that_does_not_wake_the_main_thread_is_seen() -> None:
    ended: Future[str] = Future()
    ended.set_result("ended")
    # Another thread takes the signal. The main one is as little woken as by one that comes just
    # before it waits, which no test can time.
    other = threading.Timer(0.5, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGINT))
    seen = []
    with pytest.raises(KeyboardInterrupt):
        other.start()
        for one in as_they_end([Future[str](), ended]):
            seen.append(one.result())
    assert seen == ["ended"]
    other.join()
