"""A task's questions, asked of a running model in another process than the command's."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from harness.accuracy.backends import AnswerBackend
from harness.accuracy.epochs import run_epochs
from harness.accuracy.tasks import load_task


class Questions:
    """The first `limit` questions of a task; all of them if it is None.

    Use it as a context manager: the files of the task are in a temporary folder until its end.
    Raises InputError for an unknown task, before a model is started.
    """

    def __init__(self, task: str, limit: int | None) -> None:
        self._scratch = tempfile.TemporaryDirectory()
        try:
            self._task = load_task(task, Path(self._scratch.name), limit=limit)
        except BaseException:
            self._scratch.cleanup()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._scratch.cleanup()

    def ask(self, backend: AnswerBackend, folder: Path, *, epochs: int, max_tokens: int) -> None:
        """Ask every question in every epoch, and keep each answer in `folder` at once.

        Questions whose answer is there are not asked again. `Answered.read` reads the answers.
        """
        run_epochs(
            backend, self._task, folder, num_epochs=epochs, max_tokens=max_tokens, resume=True
        )
