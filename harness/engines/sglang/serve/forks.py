"""SGLang's processes as forks of the serving process, which has imported SGLang: a start without imports.

A CUDA context does not survive a fork, and SGLang asks CUDA for its GPU before it starts a process. So the forks are
made first, and wait for what they will run. SGLang itself spawns its processes.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Mapping
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

_FORK = multiprocessing.get_context("fork")


def stand_in(num_processes: int) -> SimpleNamespace:
    """Fork processes that wait. Returns the part of module `multiprocessing` that SGLang's engine uses."""
    waiting = [_Waiting() for _ in range(num_processes)]

    def process(target: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None, **_: Any) -> Process:
        return Process(waiting.pop(0), target, args, dict(kwargs or {}))

    return SimpleNamespace(Process=process, Pipe=multiprocessing.Pipe, set_start_method=lambda *_, **__: None)


class _Waiting:
    def __init__(self) -> None:
        theirs, self.sender = multiprocessing.Pipe(duplex=False)
        self.fork = _FORK.Process(target=_wait, args=(theirs,))
        self.fork.start()
        theirs.close()


class Process:
    """Looks like `multiprocessing.Process`. The fork runs already; `start` tells it what to run."""

    def __init__(self, waiting: _Waiting, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._waiting = waiting
        self._work = (dict(os.environ), target, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._waiting.fork, name)

    def start(self) -> None:
        """Send the function and its arguments, as a spawned process would get them."""
        self._waiting.sender.send(self._work)


def _wait(receiver: Connection) -> None:
    environ, target, args, kwargs = receiver.recv()
    os.environ.update(environ)
    target(*args, **kwargs)
