"""Failures of a GPU: which exceptions they are, and whether the process can go on after one.

After an illegal address, a failed device assert or an illegal instruction every later call in the
CUDA context fails, so the worker reports this and ends. After running out of memory it goes on.
"""

from __future__ import annotations

import sys

from harness.core.errors import message_of

# Triton and cuBLAS raise plain RuntimeErrors, and older releases of torch have no AcceleratorError.
_WORDS = (
    "CUDA error",
    "CUDA out of memory",
    "CUDA driver error",
    "Triton Error [CUDA]",
    "CUBLAS_STATUS",
)

_marked_spent = False


def is_device_failure(error: BaseException) -> bool:
    """Whether `error` comes from the device, and not from the harness's own code."""
    # Not imported: an error of the device exists only where torch is loaded already.
    torch = sys.modules.get("torch")
    found = [getattr(torch, name, None) for name in ("AcceleratorError", "OutOfMemoryError")]
    kinds = tuple(kind for kind in found if isinstance(kind, type))
    return isinstance(error, kinds) or (
        isinstance(error, RuntimeError) and any(word in message_of(error) for word in _WORDS)
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation on the device or on the host did not fit."""
    torch = sys.modules.get("torch")
    kind = getattr(torch, "OutOfMemoryError", None)
    is_device = isinstance(kind, type) and isinstance(error, kind)
    return is_device or isinstance(error, MemoryError) or "DefaultCPUAllocator" in str(error)


def in_one_line(error: BaseException) -> str:
    """The first line of CUDA's message. The others are advice on debugging."""
    lines = [line.strip() for line in message_of(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def mark_spent() -> None:
    """Have this process replaced after its case, for example after a capture that failed."""
    global _marked_spent
    _marked_spent = True


def is_spent() -> bool:
    """Whether this process's CUDA context has failed for good; False without one.

    Waits for the device.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    if _marked_spent:
        return True
    try:
        # A failure shows at the next call that waits for the device.
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def free_memory() -> None:
    """Release cached memory after a case that ran out of it, so that the next case has all of
    it.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
