"""The process that serves one case. The SGLang target starts it."""

from __future__ import annotations

import functools
import importlib
import multiprocessing
import os
import tempfile
import threading
import time
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from harness.core.errors import InputError
from harness.engines.serving import ServeRequest
from harness.engines.sglang.serve.plan import METHOD, Plan, starting, states
from harness.run.protocol import answer_once


class SglangRequest(ServeRequest):
    """A checkpoint to serve with `options` of `sglang.Engine`, and with the plan in its schedulers."""

    plan: Plan


def serve(request: SglangRequest) -> dict[str, Any]:
    """Start SGLang with the plan in its schedulers, and ask every question. Returns their states, and seconds."""
    from harness.accuracy.epochs import run_epochs
    from harness.accuracy.tasks import load_task
    from harness.engines.sglang.backend import SglangBackend
    from harness.engines.sglang.serve.scheduler import run_scheduler

    clock = _Clock()
    # An error while SGLang is imported is no refusal of options.
    importlib.import_module("sglang.srt.entrypoints.engine")
    owned = functools.partial(run_scheduler, request.plan.model_dump_json())
    with tempfile.TemporaryDirectory() as scratch:
        task = load_task(request.task, Path(scratch), limit=request.limit)
        clock.note("imports")
        with starting(request.plan):
            backend = SglangBackend(request.options, owned)
        clock.note("start")
        _end_with(multiprocessing.active_children())
        folder = Path(request.directory)
        run_epochs(backend, task, folder, num_epochs=request.epochs, max_tokens=request.max_tokens, resume=True)
        clock.note("questions")
        try:
            backend.call_schedulers(METHOD)
        except Exception as error:
            # All questions were answered, so this is no failure of SGLang.
            raise InputError(f"SGLang's schedulers did not report their state: {error}".partition("\n")[0]) from None
        return {"ranks": states(request.plan), "seconds": clock.seconds}


def _end_with(processes: list[BaseProcess]) -> None:
    """End this process when one of SGLang's ends. SGLang waits on for a scheduler that ended with exit code 0."""

    def watch() -> None:
        wait([process.sentinel for process in processes])
        print("mla-harness: a process of SGLang has ended", flush=True)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class _Clock:
    """Prints and keeps the seconds of each phase, because a first start compiles for minutes."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.monotonic()

    def note(self, phase: str) -> None:
        now = time.monotonic()
        self.seconds[phase], self._last = round(now - self._last, 1), now
        print(f"mla-harness: {phase} took {self.seconds[phase]} s", flush=True)


if __name__ == "__main__":
    answer_once(SglangRequest, serve)
