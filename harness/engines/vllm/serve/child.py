"""The process that serves one case: `python -m harness.engines.vllm.serve.child`, started by the vLLM target."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Any

from harness.core.errors import InputError
from harness.core.params import Record
from harness.run.protocol import answer_once

RANKS_SECONDS = 30.0
"""How long workers may take to answer for themselves after the questions, or after a failure."""


class ServeRequest(Record):
    """A model to serve with `options` of `vllm.LLM`, the questions to ask, and the folder for the answers."""

    model: str
    options: dict[str, Any]
    concurrency: int
    task: str
    limit: int | None
    epochs: int
    max_tokens: int
    directory: str


def serve(request: ServeRequest) -> dict[str, Any]:
    """Start vLLM with the plug-in on, and ask every question of every epoch.

    Returns what was filled in all workers, and under `ranks` what each worker says it has.
    """
    from harness.accuracy.epochs import run_epochs
    from harness.accuracy.tasks import load_task
    from harness.engines.vllm.backend import VllmBackend
    from harness.engines.vllm.serve.plugin import activate
    from harness.engines.vllm.serve.worker_state import summed, tell

    activate()
    with tempfile.TemporaryDirectory() as scratch:
        task = load_task(request.task, Path(scratch), limit=request.limit)
        backend = VllmBackend(request.model, concurrency=request.concurrency, **request.options)
        try:
            run_epochs(
                backend,
                task,
                Path(request.directory),
                num_epochs=request.epochs,
                max_tokens=request.max_tokens,
                resume=True,
            )
        except Exception:
            # Ranks that are still whole tell what their recorders saw; the caller says how it failed.
            with contextlib.suppress(Exception):
                backend.ask_workers(tell, RANKS_SECONDS)
            raise
        try:
            return summed(backend.ask_workers(tell, RANKS_SECONDS))
        except Exception as error:
            # The questions were answered: this is no failure of vLLM's, and no proof of anything.
            raise InputError(f"vLLM's workers did not answer for themselves: {error}".partition("\n")[0]) from None


if __name__ == "__main__":
    answer_once(ServeRequest, serve)
