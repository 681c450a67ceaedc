"""Threads that a case leaves running in its worker. They would take time from the next case."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

LOOKS, LOOK_SECONDS = 10, 0.02
"""How often threads are looked at: on a busy machine one may get no time for a while.

Without threads, never.
"""
LEAST = 1_000_000
"""Nanoseconds that a thread may use to look at a clock now and then."""
_TASKS = Path("/proc/self/task")


def any_computes() -> bool:
    """Whether another Python thread than this one computes now.

    Threads that wait may stay. False without /proc.
    """
    others = [
        thread.native_id
        for thread in threading.enumerate()
        if thread is not threading.current_thread()
    ]
    if not others:
        return False
    before = {number: _nanoseconds(number) for number in others}
    for _ in range(LOOKS):
        time.sleep(LOOK_SECONDS)
        if any(_nanoseconds(number) > before[number] + LEAST for number in others):
            return True
    return False


def _nanoseconds(thread: int | None) -> int:
    """The time of a processor that a thread has used; 0 if it is gone."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int((_TASKS / str(thread) / "schedstat").read_text().split()[0])
    return 0
