"""What SGLang's processes import. A fork server imports this module once.

A CUDA context does not survive a fork, and SGLang's modules ask for the GPU's compute capability while they are
imported. A short-lived fork asks CUDA for it. A module that needs more of CUDA ends the import, and cases spawn.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable

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


def _import_all() -> None:
    found = _in_a_fork(lambda: bytes(torch.cuda.get_device_capability()))
    if not found:
        raise ImportError("CUDA does not start in a fork")
    capability = (found[0], found[1])
    kept = torch.cuda._lazy_init, torch.cuda.get_device_capability
    torch.cuda._lazy_init, torch.cuda.get_device_capability = _refuse, lambda *_: capability
    try:
        for module in MODULES:
            try:
                importlib.import_module(module)
            except TouchesCuda as error:
                raise ImportError(f"{module} cannot be imported before a fork: {error}") from error
    finally:
        torch.cuda._lazy_init, torch.cuda.get_device_capability = kept
    # Libraries may have touched the driver past torch.
    if not _in_a_fork(_use_cuda):
        raise ImportError("CUDA does not start in a fork of a process with SGLang's imports")


_import_all()
