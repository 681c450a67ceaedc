"""CUDA after an illegal access: every later call of the process fails, also without poison."""

from __future__ import annotations

import torch


def lost_cuda() -> str:
    """Why this process cannot use CUDA any more; empty if it can, or if CUDA is not initialized.

    Waits for all queued kernels, because a kernel's fault shows at the next wait, perhaps in the next test.
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
    """Whether torch holds memory of a device. Otherwise a call would create a context, which is slow."""
    try:
        return torch.cuda.memory_reserved(index) > 0
    except RuntimeError:
        return index == torch.cuda.current_device()  # The allocator keeps no statistics.
