"""Children that several threads ask at a time, and that an interruption ends together."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import TypeVar

from harness.core.errors import HarnessError
from harness.run.child import TICK_SECONDS, Child

ResultT = TypeVar("ResultT")


def as_they_end(futures: Iterable[Future[ResultT]]) -> Iterator[Future[ResultT]]:
    """The futures as they end.

    A Ctrl-C that comes just before the main thread waits does not end a wait without a limit: it
    would be seen only when a future ends. So the thread wakes now and then.
    """
    left = set(futures)
    while left:
        ended, left = wait(left, timeout=TICK_SECONDS, return_when=FIRST_COMPLETED)
        yield from ended


class ChildrenEndedError(HarnessError):
    """A child started while all were ended. Its thread has nothing more to do."""


class Children:
    """The children of some threads. Once they are ended, each that starts later is ended too."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[Child] = set()
        self._are_ended = False

    @contextlib.contextmanager
    def running(self, start: Callable[[], Child]) -> Iterator[Child]:
        """The child that `start` starts, closed at the end of the block.

        A start takes time, and all may be ended meanwhile. Then the child is closed, and
        ChildrenEndedError raised.
        """
        with start() as child:
            with self._lock:
                self._running.add(child)
                is_late = self._are_ended
            if is_late:
                raise ChildrenEndedError("interrupted")
            try:
                yield child
            finally:
                with self._lock:
                    self._running.discard(child)

    def end(self) -> None:
        """End the processes that run, and each that starts later.

        The thread of a child sees its death, and closes it.
        """
        with self._lock:
            self._are_ended = True
            running = tuple(self._running)
        for child in running:
            child.kill()

    @property
    def are_ended(self) -> bool:
        """Whether no child may begin any more."""
        return self._are_ended
