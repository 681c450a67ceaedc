"""The process that asks a model, as its parent handles it.

A real engine, a GPU or a user's checkpoint may crash. So they live in a child, which writes every
answer to the run directory itself. The parent shows the progress and writes the reports.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.core.model_params import ModelParams
from harness.run.child import ONE_THREAD, Child
from harness.run.protocol import Reply
from harness.run.requests import AskModel, LoadModel


class ModelProcess(Child):
    """The child, and the folder for its task's files.

    `wait_until_ready` and `ask` raise InputError for unusable input, HarnessError if the run ends
    early (for example because a server is gone), and ChildDied if the process is gone.
    """

    def __init__(self, params: ModelParams) -> None:
        # The reference engine has small matrices: one thread, unless the user's environment sets
        # more.
        environ = {**ONE_THREAD, **os.environ} if params.model.startswith("engine:") else {}
        super().__init__("harness.run.epochs", name="the model's process", environ=environ)
        self._work = tempfile.TemporaryDirectory(prefix="mla-harness-")
        self.send(LoadModel(params=params, work=self._work.name))

    def wait_until_ready(self) -> dict[str, Any]:
        """Wait for the task and the model. Returns the header of the run, and the environment."""
        ready = self.answer().ready
        assert ready is not None
        return ready

    def ask(self, directory: Path, *, resume: bool) -> Iterator[Reply]:
        """Ask the questions. Yields reports of progress, and the result last."""
        self.send(AskModel(directory=str(directory), resume=resume))
        while (reply := self.answer()).result is None:
            yield reply
        yield reply

    def close(self) -> None:
        super().close()
        self._work.cleanup()
