"""The process that serves one case. The vLLM target starts it."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

from harness.api import InputError, Questions, answer_requests
from mla_harness_adapters.serving import STARTED, ServeRequest
from mla_harness_vllm.options import OPTION_ERRORS

RANKS_SECONDS = 600.0
"""The time limit for the workers' states after the questions, or after a failure.

It only ends a hang.
"""


class VllmRequest(ServeRequest):
    """A checkpoint to serve with `options` of `vllm.LLM`."""

    model: str
    concurrency: int
    prefilled: int = 0
    """How many answers are scored again by a prefill."""


def serve(request: VllmRequest) -> dict[str, Any]:
    """Start vLLM with the plug-in active, and ask every question of every epoch.

    Returns the reports of its workers, and the scores of answers if they are asked for.
    """
    from mla_harness_vllm.backend import VllmBackend
    from mla_harness_vllm.serve import refused_drafts
    from mla_harness_vllm.serve.plugin import activate
    from mla_harness_vllm.serve.worker_state import state_of_worker

    activate()
    if request.options.get("disable_log_stats") is False:
        refused_drafts.install()
    began = time.monotonic()
    with Questions(request.task, request.limit) as questions:
        with OPTION_ERRORS.noted(request.plan.folder):
            backend = VllmBackend(request.model, concurrency=request.concurrency, **request.options)
        print(f"{STARTED} {time.monotonic() - began:.1f} s", flush=True)
        try:
            folder = Path(request.plan.folder)
            backend.num_kept = request.prefilled
            questions.ask(backend, folder, epochs=request.epochs, max_tokens=request.max_tokens)
            scores = backend.decoded_and_prefilled() if request.prefilled else []
        except Exception:
            # The recorders of ranks that still run write their reports.
            with contextlib.suppress(Exception):
                backend.ask_workers(state_of_worker, RANKS_SECONDS)
            raise
        try:
            ranks = backend.ask_workers(state_of_worker, RANKS_SECONDS)
        except Exception as error:
            # All questions were answered, so this is no failure of vLLM.
            raise InputError(
                f"vLLM's workers did not report their state: {error}".partition("\n")[0]
            ) from None
    return {"ranks": ranks, "scores": scores}


if __name__ == "__main__":
    answer_requests(VllmRequest, serve, once=True)
