"""What SGLang's processes import. A fork server calls `import_all` once.

A CUDA context does not survive a fork, and SGLang's modules ask for the GPU's capability and properties while they are
imported. A short-lived fork asks CUDA for both. A module that needs more of CUDA ends the import, and cases spawn.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

MODULES = (
    "lm_eval.api.task",
    "harness.accuracy.epochs",
    "harness.accuracy.tasks",
    "harness.engines.sglang.backend",
    "harness.engines.sglang.serve.scheduler",
    "sglang.srt.entrypoints.engine",
    "sglang.srt.managers.scheduler",
    "sglang.srt.managers.detokenizer_manager",
    "sglang.srt.model_executor.model_runner",
    "sglang.srt.models.registry",
    "sglang.srt.layers.attention.triton_backend",
)


class TouchesCuda(BaseException):
    """A module would initialize CUDA. No `except Exception` of an import may swallow it."""


def _in_a_fork(work: Callable[[], bytes]) -> bytes:
    """What `work` returns in a short-lived fork; empty if it fails there."""
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            os.write(writer, work())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        found = stream.read()
    os.waitpid(pid, 0)
    return found


def _use_cuda() -> bytes:
    torch.ones(1, device="cuda")
    return b"yes"


def _refuse() -> None:
    raise TouchesCuda("it initializes CUDA")


def _properties() -> bytes:
    """The properties of the GPU that are plain values, as JSON."""
    found = torch.cuda.get_device_properties(0)
    named = {name: getattr(found, name) for name in dir(found) if not name.startswith("_")}
    return json.dumps({name: value for name, value in named.items() if isinstance(value, int | str)}).encode()


def import_all() -> None:
    """Import MODULES. Raises ImportError if their process cannot be forked."""
    found = _in_a_fork(_properties)
    if not found:
        raise ImportError("CUDA does not start in a fork")
    gpu = SimpleNamespace(**json.loads(found))
    answers: dict[str, Any] = {
        "_lazy_init": _refuse,
        "current_device": lambda: 0,
        "get_device_capability": lambda *_: (gpu.major, gpu.minor),
        "get_device_properties": lambda *_: gpu,
    }
    with mock.patch.multiple(torch.cuda, **answers):
        for module in MODULES:
            try:
                importlib.import_module(module)
            except TouchesCuda as error:
                raise ImportError(f"{module} cannot be imported before a fork: {error}") from error
    # torch keeps the properties; the forks ask the GPU itself.
    interface = sys.modules.get("torch._dynamo.device_interface")
    if interface is not None:
        interface.caching_worker_device_properties.clear()
    # Libraries may have touched the driver past torch.
    if not _in_a_fork(_use_cuda):
        raise ImportError("CUDA does not start in a fork of a process with SGLang's imports")
