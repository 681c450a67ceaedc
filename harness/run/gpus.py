"""Which GPU a worker may use: one worker a GPU, in this process and among all processes of the machine.

A case that spans several GPUs holds all of them, or waits with none.

A lock file for each GPU's UUID keeps sessions apart, for example the workers of pytest-xdist; the system frees it when
its holder dies. Devices are numbered as the workers see them, so CUDA_VISIBLE_DEVICES is respected.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from filelock import FileLock, Timeout

from harness.core.errors import HarnessError
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
        for index in range(len(self._locks)):
            if self._try(index):
                self._waiting_since = None
                return index
        if not self._held:
            self._check_patience()
        return None

    def take_several(self, count: int) -> tuple[int, ...]:
        """The numbers of `count` GPUs that nobody uses, now held; none of them while fewer are free.

        So two sessions never wait for what the other one holds. Raises GpuBusy after half an hour.
        """
        taken: list[int] = []
        for index in range(len(self._locks)):
            if len(taken) < count and self._try(index):
                taken.append(index)
        if len(taken) == count:
            self._waiting_since = None
            return tuple(taken)
        for index in taken:
            self.give_back(index)
        self._check_patience()
        return ()

    def _try(self, index: int) -> bool:
        if index in self._held:
            return False
        try:
            self._locks[index].acquire(timeout=0)
        except Timeout:
            return False
        self._held.add(index)
        return True

    def _check_patience(self) -> None:
        """Raise GpuBusy when this session has waited for too long."""
        now = time.monotonic()
        self._waiting_since = self._waiting_since or now
        if now - self._waiting_since > PATIENCE_SECONDS:
            files = ", ".join(lock.lock_file for lock in self._locks)
            raise GpuBusy(f"GPUs have been in use by other sessions for {PATIENCE_SECONDS:g} s; see {files}")

    def give_back(self, index: int) -> None:
        """Let others use a GPU that was taken."""
        if index in self._held:
            self._held.discard(index)
            self._locks[index].release()
