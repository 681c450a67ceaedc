"""CUDA after a fault: one illegal access, and every later call of the process fails, also without poison."""

from __future__ import annotations

import torch


def lost_cuda() -> str:
    """Why CUDA can be used no more in this process; empty where it can, or where nobody has used it.

    Waits for all that is queued: a kernel's fault shows up when somebody waits, which may be in the next test. So a
    value that is read after this was also written before, on whichever stream.
    """
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return ""
    try:
        for index in range(torch.cuda.device_count()):
            if _is_used(index):
                torch.cuda.synchronize(index)
    except RuntimeError as error:
        return (str(error) or type(error).__name__).splitlines()[0]
    return ""


def _is_used(index: int) -> bool:
    """Whether torch holds memory of a device: without, it has no context there, and to make one takes a while."""
    try:
        return torch.cuda.memory_reserved(index) > 0
    except RuntimeError:
        return index == torch.cuda.current_device()  # an allocator that keeps no statistics
