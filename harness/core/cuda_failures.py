"""Failures of a GPU: which exceptions they are, and whether the process can go on after one.

An illegal address, a failed device assert or an illegal instruction stays with the CUDA context: every later call fails
as well, so the worker says so with its answer and ends. Running out of memory harms nobody else.
"""

from __future__ import annotations

import sys

_WORDS = ("CUDA error", "CUDA out of memory", "CUDA driver error", "Triton Error [CUDA]", "CUBLAS_STATUS")


def is_device_failure(error: BaseException) -> bool:
    """Whether `error` tells of the device, and not of the harness's own code."""
    torch = sys.modules.get("torch")
    kinds = tuple(
        kind
        for name in ("AcceleratorError", "OutOfMemoryError")
        if isinstance(kind := getattr(torch, name, None), type)
    )
    return isinstance(error, kinds) or (isinstance(error, RuntimeError) and any(word in str(error) for word in _WORDS))


def in_one_line(error: BaseException) -> str:
    """What CUDA said, without its advice on debugging."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def is_spent() -> bool:
    """Whether this process's CUDA context has failed for good; waits for the device. False where none was used."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    if getattr(sys.modules.get("harness.memory.graph.cuda"), "num_abandoned", 0):
        return True
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def free_memory() -> None:
    """Give cached memory back after a case that ran out of it, so that the next one starts with all there is."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
