"""How long calls take on a GPU, by its own clock."""

from __future__ import annotations

from collections.abc import Callable

import torch


def queued(call: Callable[[], object]) -> Callable[[], float]:
    """Queue a call between two device events.

    Returns a function that waits for it and returns its milliseconds.
    """
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    stop.record()

    def wait() -> float:
        stop.synchronize()
        return float(start.elapsed_time(stop))

    return wait


def queued_milliseconds(call: Callable[[], object], steps: int) -> float:
    """Milliseconds of one of `steps` calls that the host queues without waiting."""

    def all_steps() -> None:
        for _ in range(steps):
            call()

    call()
    torch.cuda.synchronize()
    return queued(all_steps)() / steps
