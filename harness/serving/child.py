"""The process that serves one case: `python -m harness.serving.child ORDER`, started by the vLLM target alone."""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
import tempfile
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.errors import InputError

REFUSED, FAILED = 2, 3
FILLED_FILE = "poison.json"
"""Beside the answers: how often free memory was swept, and how many blocks and context rows were filled."""
PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve, ask, store; the exit code says how it ended, and standard error why."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
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
    """Put the fault back, start vLLM with the plug-in on, and ask every question of every epoch."""
    from harness.accuracy.epochs import run_epochs
    from harness.accuracy.tasks import load_task
    from harness.accuracy.vllm_backend import VllmBackend
    from harness.serving.plugin import activate

    activate()
    if order["fault"]:
        from harness.serving.vllm_faults import put_back

        put_back(order["fault"], importlib.import_module("vllm").__version__)
    if order["simulated"]:
        from harness.serving.routing import register

        register()
    with tempfile.TemporaryDirectory() as scratch:
        task = load_task(order["task"], Path(scratch), limit=order["limit"])
        backend = VllmBackend(order["model"], concurrency=order["concurrency"], **order["options"])
        run_epochs(
            backend, task, Path(order["directory"]), num_epochs=order["epochs"], max_tokens=order["max_tokens"],
            resume=True,
        )  # fmt: skip
    if os.environ.get("MLA_HARNESS_POISON"):
        from harness.serving.hooks import FILLED

        Path(order["directory"], FILLED_FILE).write_text(json.dumps(asdict(FILLED)), encoding="utf-8")


if __name__ == "__main__":
    main()
