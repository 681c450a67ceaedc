"""Waiting in tests: for what happened, never for a time.

A busy machine makes every process late, by an unknown factor. So a test waits for the event itself.
The one limit is HANG_SECONDS: it ends a test that would never end, and says nothing about how quick
anything is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol, TypeVar

import pytest

HANG_SECONDS = 1800.0
"""After this time a test counts as hung. No test needs a hundredth of it on an idle machine."""
POLL_SECONDS = 0.02
LATE = 300.0
"""What the clock of :func:`end_limits_when` shows at the end: a limit of a test is over, and
HANG_SECONDS is not.
"""

SeenT = TypeVar("SeenT")


class Ends(Protocol):
    """The part of `subprocess.Popen` that a wait looks at."""

    def poll(self) -> int | None: ...


def wait_until(happened: Callable[[], SeenT], what: str, process: Ends | None = None) -> SeenT:
    """Call `happened` until it returns something true, and return that.

    `what` completes the sentence "hung before ...". Fails the test after HANG_SECONDS, or if
    `process`, which should make it happen, ended before.
    """
    begun = time.monotonic()
    while not (seen := happened()):
        # One last look: it may have happened just before the end.
        if process is not None and process.poll() is not None and not (seen := happened()):
            pytest.fail(f"the process ended with {process.poll()} before {what}")
        if seen:
            return seen
        if time.monotonic() - begun > HANG_SECONDS:
            pytest.fail(f"hung before {what}")
        time.sleep(POLL_SECONDS)
    return seen


def wait_until_gone(pid: int) -> None:
    """Wait until the process `pid` has ended.

    A zombie, which nobody may collect here, counts as ended.
    """
    wait_until(lambda: not Path(f"/proc/{pid}/exe").exists(), f"process {pid} ended")


def wait_until_group_is_gone(group: int) -> None:
    """Wait until no process of the process group `group` is left."""

    def is_gone() -> bool:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        return False

    wait_until(is_gone, f"process group {group} ended")


def end_limits_when(
    monkeypatch: pytest.MonkeyPatch, module: Any, happened: Callable[[], object]
) -> None:
    """Give `module` a clock that stands still until `happened()`, and then shows LATE.

    So what is to happen within a time limit does, however slow the machine is, and then the limit
    ends. It must happen after the limit has begun: a limit that begins at LATE never ends.
    """

    def monotonic() -> float:
        return LATE if happened() else 0.0

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=monotonic, sleep=time.sleep))
