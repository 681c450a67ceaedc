"""Threads that a case leaves running in its worker. They would take time from the next case."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from pathlib import Path

LOOKS = 10
LOOK_SECONDS = 0.02
"""How often threads are looked at: on a busy machine one may get no time for a while.

Without threads, never.
"""
LEAST = 1_000_000
"""Nanoseconds that a thread may use to look at a clock now and then."""
_TASKS = Path("/proc/self/task")


_used: weakref.WeakKeyDictionary[threading.Thread, int] = weakref.WeakKeyDictionary()
"""The time of a processor that each thread had used when it was last looked at."""


def any_computes() -> bool:
    """Whether another Python thread than this one computes now.

    Threads that wait may stay: one that was seen to wait, and has used no time since, is not
    waited for again. False without /proc.
    """
    others = [one for one in threading.enumerate() if one is not threading.current_thread()]
    before = {one: _nanoseconds(one) for one in others}
    suspects = [one for one in others if one not in _used or before[one] > _used[one] + LEAST]
    _used.update(before)
    if not suspects:
        return False
    for _ in range(LOOKS):
        time.sleep(LOOK_SECONDS)
        if any(_nanoseconds(one) > before[one] + LEAST for one in suspects):
            return True
    return False


def _nanoseconds(thread: threading.Thread) -> int:
    """The time of a processor that a thread has used; 0 if it is gone."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        # The first number of `schedstat` is the time on a processor in nanoseconds.
        return int((_TASKS / str(thread.native_id) / "schedstat").read_text().split()[0])
    return 0
