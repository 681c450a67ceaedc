"""Python files of users, executed once in a process: plug-ins with kernels, and cures."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from harness.core.errors import InputError

LoadedT = TypeVar("LoadedT")


def load_once(
    path: str | Path, loaded: dict[Path, LoadedT | InputError], execute: Callable[[Path], LoadedT]
) -> LoadedT:
    """The result of `execute` for a file, kept in `loaded`. A file that failed raises the same InputError each time."""
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


def execute_file(file: Path, kind: str, module_name: str) -> None:
    """Execute a Python file as a module. Raises InputError that names the `kind` of file, the file and the line."""
    if not file.is_file():
        raise InputError(f"{kind} {file}: there is no such file; give the path of a Python file")
    spec = importlib.util.spec_from_file_location(module_name, file)
    if spec is None or spec.loader is None:
        raise InputError(f"{kind} {file}: not a Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except InputError as error:
        raise InputError(f"{kind} {file}:{_line_in(file, error)}: {error}") from error
    except (Exception, SystemExit) as error:
        sentence = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise InputError(f"{kind} {file}:{_line_in(file, error)}: {sentence}; it must import cleanly") from error


def _line_in(file: Path, error: BaseException) -> int:
    """The line of `file` that raised: of the innermost frame in it, or of a syntax error."""
    if isinstance(error, SyntaxError) and error.lineno:
        return error.lineno
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    return (frames[-1].lineno or 0) if frames else 0
