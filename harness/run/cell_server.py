"""The server of cells of a run: see :mod:`harness.cell`. No torch here."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Self

from harness.core.errors import HarnessError
from harness.run.launch import words_of


class CellServer:
    """A process that forks cells, and the socket that reaches it. It dies with this process."""

    def __init__(self) -> None:
        """Start it, without waiting. Raises HarnessError if it cannot be started."""
        self._folder = tempfile.TemporaryDirectory(prefix="mla-harness-cells-")
        self.path = str(Path(self._folder.name) / "socket")
        words = words_of("harness.cell.server", self.path, parent=os.getpid())
        self._process = subprocess.Popen(
            [sys.executable, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            # Ctrl-C then reaches this process alone, which ends the server. The cells die with it.
            start_new_session=True,
        )
        self._is_ready = False

    def wait_until_ready(self) -> None:
        """Wait until it has imported torch. Raises HarnessError if it ends before."""
        if self._is_ready:
            return
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != b"ready":
            raise HarnessError(f"the server of cells ended with {self._process.wait()}")
        self._is_ready = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the server and its cells."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._folder.cleanup()
