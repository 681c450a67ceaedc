"""The worker extension of idle_rank.py: what is filled before a step is filled before each dummy
step too.

vLLM imports it in each worker. It prints how many dummy steps the worker has run.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from typing import Any

from mla_harness_adapters.plan import ServePoison
from mla_harness_vllm.serve.hooks import StepPoison
from mla_harness_vllm.serve.settings import BLOCKS, VARIABLE, parse_poison
from mla_harness_vllm.serve.worker import Extension

__all__ = ["Extension"]
EVERY = 50


def install() -> None:
    """Wrap the dummy step of vLLM's worker."""
    worker: Any = importlib.import_module("vllm.v1.worker.gpu_worker").Worker
    original, steps = worker.execute_dummy_batch, 0
    poison = parse_poison(text) if (text := os.environ.get(VARIABLE, "")) else None
    # New blocks and their ends are of requests, which a dummy step has not.
    sites = tuple(site for site in poison.sites if site not in BLOCKS) if poison else ()
    fill = StepPoison(ServePoison(sites, poison.pattern)) if poison and sites else None

    @functools.wraps(original)
    def execute_dummy_batch(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal steps
        if fill is not None:
            fill(self.model_runner, None)  # type: ignore[arg-type]
        steps += 1
        if steps == 1 or steps % EVERY == 0:
            print(
                f"mla-harness: {steps} dummy steps in process {os.getpid()}",
                file=sys.stderr,
                flush=True,
            )
        return original(self, *args, **kwargs)

    worker.execute_dummy_batch = execute_dummy_batch


install()
