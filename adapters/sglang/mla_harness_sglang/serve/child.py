"""The process that serves one case. The SGLang target starts it."""

from __future__ import annotations

import functools
import importlib
import multiprocessing
import os
import threading
import time
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from harness.api import InputError, Questions, answer_requests
from mla_harness_adapters.serving import STARTED, ServeRequest
from mla_harness_sglang.options import OPTION_ERRORS
from mla_harness_sglang.serve.plan import METHOD, told


def serve(request: ServeRequest) -> dict[str, Any]:
    """Start `sglang.Engine` with the plan in its schedulers, and ask every question.

    Returns the reports of the schedulers.
    """
    from mla_harness_sglang.backend import SglangBackend
    from mla_harness_sglang.serve.scheduler import run_scheduler

    began = time.monotonic()
    # An error while SGLang is imported is no refusal of options.
    importlib.import_module("sglang.srt.entrypoints.engine")
    owned = functools.partial(run_scheduler, request.plan.model_dump_json())
    with Questions(request.task, request.limit) as questions:
        with OPTION_ERRORS.noted(request.plan.folder):
            backend = SglangBackend(request.options, owned)
        # A first start compiles for minutes.
        print(f"{STARTED} {time.monotonic() - began:.1f} s", flush=True)
        _end_with(multiprocessing.active_children())
        folder = Path(request.plan.folder)
        questions.ask(backend, folder, epochs=request.epochs, max_tokens=request.max_tokens)
        try:
            backend.call_schedulers(METHOD)
        except Exception as error:
            # All questions were answered, so this is no failure of SGLang.
            raise InputError(
                f"SGLang's schedulers did not report their state: {error}".partition("\n")[0]
            ) from None
        return {"ranks": told(request.plan)}


def _end_with(processes: list[BaseProcess]) -> None:
    """End this process when one of SGLang's ends.

    SGLang waits on for a scheduler that ended with exit code 0.
    """

    def watch() -> None:
        wait([process.sentinel for process in processes])
        print("mla-harness: a process of SGLang has ended", flush=True)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    answer_requests(ServeRequest, serve, once=True)
