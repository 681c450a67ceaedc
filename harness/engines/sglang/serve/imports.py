"""What SGLang's processes import. A fork server imports this module once.

A CUDA context does not survive a fork, and SGLang's modules ask for the GPU's compute capability while they are
imported. A short-lived fork asks CUDA for it. A module that needs more of CUDA ends the import, and cases spawn.
"""

from __future__ import annotations

import importlib
import os

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


def _capability() -> tuple[int, int]:
    """The GPU's compute capability, asked in a fork."""
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        os.write(writer, bytes(torch.cuda.get_device_capability()))
        os._exit(0)
    os.close(writer)
    major, minor = os.read(reader, 2)
    os.waitpid(pid, 0)
    os.close(reader)
    return major, minor


def _starts_in_a_fork() -> bool:
    """Whether CUDA starts in a fork of this process: libraries may have touched the driver past torch."""
    if (pid := os.fork()) == 0:
        try:
            torch.ones(1, device="cuda")
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0


def _refuse() -> None:
    raise TouchesCuda("it initializes CUDA")


def _import_all() -> None:
    capability = _capability()
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
    if not _starts_in_a_fork():
        raise ImportError("CUDA does not start in a fork of a process with SGLang's imports")


_import_all()
