"""The process that serves one case: `python -m harness.engines.vllm.serve.child ORDER`, started by the vLLM target."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

from harness.core.errors import InputError

REFUSED, FAILED = 2, 3
FILLED_FILE = "poison.json"
"""Beside the answers: what was filled in all workers, and under `ranks` what each says it has, see `told.summed`."""
RANKS_SECONDS = 30.0
"""How long workers may take to answer for themselves after the questions, or after a failure."""
PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have the kernel end this process when the one that started it ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    """Serve, ask, store; the exit code says how it ended, and standard error why."""
    die_with_parent()
    code = 0
    try:
        serve(json.loads(sys.argv[1]))
    except InputError as error:
        print(f"mla-harness: {error}", flush=True)
        code = REFUSED
    except BaseException:
        traceback.print_exc()
        code = FAILED
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads and CUDA contexts of a serving engine must not keep the process, nor change how it ended.
    os._exit(code)


def serve(order: dict[str, Any]) -> None:
    """Start vLLM with the plug-in on, ask every question of every epoch, and have every worker answer for itself."""
    from harness.accuracy.epochs import run_epochs
    from harness.accuracy.tasks import load_task
    from harness.engines.vllm.backend import VllmBackend
    from harness.engines.vllm.serve.plugin import activate
    from harness.engines.vllm.serve.worker_state import summed, tell

    activate()
    with tempfile.TemporaryDirectory() as scratch:
        task = load_task(order["task"], Path(scratch), limit=order["limit"])
        backend = VllmBackend(order["model"], concurrency=order["concurrency"], **order["options"])
        try:
            run_epochs(
                backend, task, Path(order["directory"]), num_epochs=order["epochs"], max_tokens=order["max_tokens"],
                resume=True,
            )  # fmt: skip
        except Exception:
            # Ranks that are still whole tell what their recorders saw; how it failed is told by who called.
            with contextlib.suppress(Exception):
                backend.ask_workers(tell, RANKS_SECONDS)
            raise
        try:
            told = summed(backend.ask_workers(tell, RANKS_SECONDS))
        except Exception as error:
            # The questions were answered: this is no failure of vLLM's, and no proof of anything.
            raise InputError(f"vLLM's workers did not answer for themselves: {error}".partition("\n")[0]) from None
        Path(order["directory"], FILLED_FILE).write_text(json.dumps(told), encoding="utf-8")


if __name__ == "__main__":
    main()
