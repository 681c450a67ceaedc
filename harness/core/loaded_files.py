"""Python files of users with kernels or cures, each executed once in a process."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from harness.core.errors import InputError

LoadedT = TypeVar("LoadedT")


def load_once(
    path: str | Path, loaded: dict[Path, LoadedT | InputError], execute: Callable[[Path], LoadedT]
) -> LoadedT:
    """The result of `execute(path)`, kept in `loaded`. A file that failed raises the same InputError again."""
    file = Path(path).resolve()
    if file not in loaded:
        try:
            loaded[file] = execute(file)
        except InputError as error:
            loaded[file] = error
    found = loaded[file]
    if isinstance(found, InputError):
        raise found
    return found


def line_in(file: Path, error: BaseException) -> int:
    """The line of `file` that raised `error`: its innermost frame, or the syntax error; 0 if there is none."""
    if isinstance(error, SyntaxError) and error.lineno:
        return error.lineno
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    return (frames[-1].lineno or 0) if frames else 0
