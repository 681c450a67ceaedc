"""Locks on GPUs: `shares` workers a GPU in this process, and one process among all of the machine.

Each GPU's UUID has a lock file, which keeps sessions apart, for example the workers of
pytest-xdist. The system frees the lock when its holder dies. Devices are numbered as the workers
see them, so CUDA_VISIBLE_DEVICES is respected.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from pathlib import Path

from filelock import FileLock, Timeout

from harness.core.errors import HarnessError
from harness.run.environment import Gpu

PATIENCE_SECONDS = 1800.0


class GpuLocks:
    """The GPUs of this machine that this session may hand to its workers."""

    def __init__(
        self, gpus: tuple[Gpu, ...], directory: Path | None = None, shares: int = 1
    ) -> None:
        folder = Path(tempfile.gettempdir()) if directory is None else directory
        self._locks = [
            FileLock(folder / f"mla-harness-gpu-{gpu.uuid or index}.lock")
            for index, gpu in enumerate(gpus)
        ]
        self._shares = shares
        self._held = Counter[int]()
        self._waiting_since: float | None = None

    def take(self, count: int = 1) -> tuple[int, ...]:
        """Lock `count` GPUs and return their numbers; lock none and return () while fewer are free.

        All or none: two sessions never wait for GPUs of each other. Raises HarnessError after half
        an hour in which this session held no GPU.
        """
        taken: list[int] = []
        # The GPU with fewest workers first, so that shares spread.
        for index in sorted(range(len(self._locks)), key=self._held.__getitem__):
            if len(taken) < count and self._try(index):
                taken.append(index)
        if len(taken) == count:
            self._waiting_since = None
            return tuple(taken)
        # All or none: a session that keeps one GPU and waits for another can wait for a session
        # that does the same.
        for index in taken:
            self.give_back(index)
        # A session that has a GPU makes progress, so it may wait for more.
        if not self._held.total():
            self._check_patience()
        return ()

    def _try(self, index: int) -> bool:
        if self._held[index] >= self._shares:
            return False
        try:
            # A lock that this process holds is counted, not awaited.
            self._locks[index].acquire(timeout=0)
        except Timeout:
            return False
        self._held[index] += 1
        return True

    def _check_patience(self) -> None:
        now = time.monotonic()
        self._waiting_since = self._waiting_since or now
        if now - self._waiting_since > PATIENCE_SECONDS:
            files = ", ".join(lock.lock_file for lock in self._locks)
            raise HarnessError(
                f"GPUs have been in use by other sessions for {PATIENCE_SECONDS:g} s; see {files}"
            )

    def give_back(self, index: int) -> None:
        self._held[index] -= 1
        self._locks[index].release()
