"""The process that asks a model, as its parent sees it: what it is told, what it says, and how it died.

vLLM, an engine on a GPU and a user's checkpoint may take their process with them. They live in a child, which notes
every answer in the run's directory itself; its parent draws the progress and writes the reports.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.core.engine_params import ModelParams
from harness.core.errors import HarnessError, InputError
from harness.core.params import Record
from harness.core.python_path import python_path

LOG_TAIL_BYTES = 4_000


class Said(Record):
    """One line from the child. Exactly one field is set."""

    ready: dict[str, Any] | None = None
    """The header of the run and the machine, once the task is loaded and the model answers."""
    progress: dict[str, int] | None = None
    done: float | None = None
    """Seconds, once every question of every epoch has its result."""
    refused: str | None = None
    """One sentence about input that cannot be used."""
    failed: str | None = None
    """One sentence about what ended the run early, such as a server that is gone."""


class ModelDied(HarnessError):
    """The child is gone without a word; `log` is the end of what it printed."""

    def __init__(self, how: str, log: str) -> None:
        super().__init__(how)
        self.log = log


class ModelProcess:
    """The child, in a process group of its own: Ctrl-C reaches the parent, which then ends the whole group."""

    def __init__(self, questions: ModelParams) -> None:
        self._work = tempfile.TemporaryDirectory(prefix="mla-harness-")
        self._log = tempfile.TemporaryFile(mode="a+b", prefix="mla-harness-model-")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "harness.run.epochs", "--parent", str(os.getpid())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, encoding="utf-8",
            env={**_threads(questions.model), **os.environ, "PYTHONPATH": python_path()}, start_new_session=True,
        )  # fmt: skip
        self._send({"questions": questions.model_dump(), "work": self._work.name})

    def __enter__(self) -> ModelProcess:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    def wait_until_ready(self) -> dict[str, Any]:
        """What the child says once it has loaded everything. Raises InputError for what cannot be used."""
        for said in self._lines():
            if said.ready is not None:
                return said.ready
        raise AssertionError("unreachable: the lines end with an error")

    def ask(self, directory: Path, *, resume: bool) -> Iterator[Said]:
        """Start asking; yields progress, and `done` last. Raises for everything else that ends it."""
        self._send({"directory": str(directory), "resume": resume})
        for said in self._lines():
            yield said
            if said.done is not None:
                return

    def close(self) -> None:
        """End the child and all that it started. Each answer that it was told of is on disk already."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self._process.returncode is None:
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()
        self._work.cleanup()

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        # A child that is dead already says so where its next line is read.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()

    def _lines(self) -> Iterator[Said]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = Said.model_validate_json(line)
            if said.refused is not None:
                raise InputError(said.refused)
            if said.failed is not None:
                raise HarnessError(said.failed)
            yield said
        code = self._process.wait()
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        raise ModelDied(f"the model's process died ({name})", self._log_tail())

    def _log_tail(self) -> str:
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), LOG_TAIL_BYTES, max(0, size - LOG_TAIL_BYTES)).decode("utf-8", "replace")


def _threads(model: str) -> dict[str, str]:
    """One thread for the small matrices of the reference engine, as in a worker, unless the user asks for more."""
    return {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"} if model.startswith("engine:") else {}
