"""The process that serves one case. The vLLM target starts it."""

from __future__ import annotations

import contextlib
import tempfile
import time
from pathlib import Path
from typing import Any

from harness.core.errors import InputError
from harness.engines.serving import STARTED, ServeRequest
from harness.run.protocol import answer_once

RANKS_SECONDS = 600.0
"""The time limit for the workers' states after the questions, or after a failure.

It only ends a hang.
"""
NO_ROOM, REFUSED = "Free memory on device", "refused"
"""How vLLM's message begins if others hold the GPU, and the only key of a result with the message
of a refusal.
"""


class VllmRequest(ServeRequest):
    """A checkpoint to serve with `options` of `vllm.LLM`."""

    model: str
    concurrency: int


def serve(request: VllmRequest) -> dict[str, Any]:
    """Start vLLM with the plug-in active, and ask every question of every epoch.

    Returns `worker_state.summed`.
    """
    from harness.accuracy.epochs import run_epochs
    from harness.accuracy.tasks import load_task
    from harness.engines.vllm.backend import VllmBackend
    from harness.engines.vllm.serve import refused_drafts
    from harness.engines.vllm.serve.plugin import activate
    from harness.engines.vllm.serve.worker_state import state_of_worker, summed

    activate()
    if request.options.get("disable_log_stats") is False:
        refused_drafts.install()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        task = load_task(request.task, Path(scratch), limit=request.limit)
        try:
            backend = VllmBackend(request.model, concurrency=request.concurrency, **request.options)
        except (NotImplementedError, ValueError) as error:
            # vLLM checks its options with these. Whatever else goes wrong at the start is a crash.
            if str(error).startswith(NO_ROOM):
                raise
            return {REFUSED: " ".join(str(error).split())}
        print(f"{STARTED} {time.monotonic() - began:.1f} s", flush=True)
        try:
            folder = Path(request.directory)
            run_epochs(
                backend,
                task,
                folder,
                num_epochs=request.epochs,
                max_tokens=request.max_tokens,
                resume=True,
            )
        except Exception:
            # The recorders of ranks that still run write their reports.
            with contextlib.suppress(Exception):
                backend.ask_workers(state_of_worker, RANKS_SECONDS)
            raise
        try:
            return summed(backend.ask_workers(state_of_worker, RANKS_SECONDS))
        except Exception as error:
            # All questions were answered, so this is no failure of vLLM.
            raise InputError(
                f"vLLM's workers did not report their state: {error}".partition("\n")[0]
            ) from None


if __name__ == "__main__":
    answer_once(VllmRequest, serve)
