"""Which GPU a worker may use: one worker a GPU, in this process and among all processes of the machine.

A lock file for each GPU's UUID keeps sessions apart, for example the workers of pytest-xdist; the system frees it when
its holder dies. Devices are numbered as the workers see them, so CUDA_VISIBLE_DEVICES is respected.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from filelock import FileLock, Timeout

from harness.errors import HarnessError
from harness.run.environment import Gpu

PATIENCE_SECONDS = 1800.0


class GpuBusy(HarnessError):
    """Other sessions hold every GPU, and kept them too long. Exit code 3."""


class GpuLocks:
    """The GPUs of this machine that this session may hand to its workers."""

    def __init__(self, gpus: tuple[Gpu, ...], directory: Path | None = None) -> None:
        folder = Path(tempfile.gettempdir()) if directory is None else directory
        self._locks = [FileLock(folder / f"mla-harness-gpu-{gpu.uuid or index}.lock") for index, gpu in enumerate(gpus)]
        self._held: set[int] = set()
        self._waiting_since: float | None = None

    def __len__(self) -> int:
        return len(self._locks)

    def take(self) -> int | None:
        """The number of a GPU that nobody uses, now held; None when all are in use. Raises GpuBusy after half an hour
        in which other sessions kept all of them."""
        for index, lock in enumerate(self._locks):
            if index in self._held:
                continue
            try:
                lock.acquire(timeout=0)
            except Timeout:
                continue
            self._held.add(index)
            self._waiting_since = None
            return index
        if self._held:
            return None
        self._check_patience()
        return None

    def take_several(self, count: int) -> tuple[int, ...]:
        """`count` GPUs that nobody uses, now held, or none: two sessions never wait for what the other one holds.

        Raises GpuBusy after half an hour in which other sessions kept too many.
        """
        waiting_since, taken = self._waiting_since, list[int]()
        while len(taken) < count and self._is_any_left(taken) and (gpu := self.take()) is not None:
            taken.append(gpu)
        if len(taken) == count:
            return tuple(taken)
        for gpu in taken:
            self.give_back(gpu)
        self._waiting_since = waiting_since
        self._check_patience()
        return ()

    def give_back(self, index: int) -> None:
        """Let others use a GPU that was taken."""
        if index in self._held:
            self._held.discard(index)
            self._locks[index].release()
