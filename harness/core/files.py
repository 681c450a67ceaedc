"""Files that survive a crash, Python files of users, and the folders of the project's fixtures."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from harness.core.errors import InputError, explained_writes, message_of, named

LoadedT = TypeVar("LoadedT")
_INSTALLED = Path(__file__).resolve().parents[1] / "_fixtures"
_CHECKOUT = Path(__file__).resolve().parents[2] / "fixtures"

# A checkout's own, although an installed harness may lie beside it.
FIXTURES = _CHECKOUT if _CHECKOUT.is_dir() else _INSTALLED
TASKS = FIXTURES / "tasks"
CACHE = Path("~/.cache/mla-harness")
"""What is made or fetched once for all runs of a user."""
BASELINES = FIXTURES / "baselines"


def rows_beside(module: str) -> dict[str, dict[str, Any]]:
    """The rows of the table in YAML that has the name of a module's file."""
    rows: dict[str, dict[str, Any]] = read_rows(Path(module).with_suffix(".yaml"))
    return rows


def read_rows(table: Path) -> Any:
    """The rows of a table in YAML, which is a file of this package."""
    return load_yaml(table.read_text(encoding="utf-8"))


def load_yaml(text: str) -> Any:
    """The value of a text in YAML, which is loaded safely. Raises yaml.YAMLError."""
    # `mla-harness --help` reads no table.
    import yaml

    # libyaml is ten times as fast.
    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def with_tuples(row: dict[str, Any]) -> dict[str, Any]:
    """A row whose lists are tuples, as frozen records have them."""
    return {
        field: tuple(value) if isinstance(value, list) else value for field, value in row.items()
    }


def write_atomic(path: Path, text: str) -> None:
    """Replace a file by `text` at once: a reader sees the old file or the whole new one.

    Raises GoneError.
    """
    with explained_writes(path):
        # In the same folder: a rename over two file systems would not be one step.
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with explained_writes(path):
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                stream.write(text)
                stream.flush()
                # Before the rename, or a machine that loses its power could keep the name and lose
                # the text.
                os.fsync(stream.fileno())
            # mkstemp makes files for their owner alone; a report is for others too.
            os.chmod(name, 0o644)
            os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def made_once(path: Path, make: Callable[[Path], None]) -> Path:
    """`path`, a file or a folder, which `make` makes if it is not there.

    It is made under another name first: what has the right name is whole, also for a process beside
    this one. What `make` raises leaves nothing behind.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
            made = Path(scratch) / path.name
            make(made)
            os.replace(made, path)
    return path


def keep_for_reader(text: str, kind: str) -> str:
    """Write `text` to a new file of the temporary folder, for the reader of an error.

    Returns its path.
    """
    with contextlib.suppress(OSError):
        handle, name = tempfile.mkstemp(prefix="mla-harness-", suffix=f".{kind}.txt")
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as stream:
            stream.write(text)
        return name
    return "no file (none could be written)"


def load_once(
    path: str | Path, loaded: dict[Path, LoadedT | InputError], execute: Callable[[Path], LoadedT]
) -> LoadedT:
    """The result of `execute` for a file, kept in `loaded`.

    A file that failed raises the same InputError each time.
    """
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
    """Execute a Python file as a module.

    Raises InputError that names the `kind` of file, the file and the line.
    """
    # `Path.is_file` raises for a name that is too long.
    if not os.path.isfile(file):
        raise InputError(
            f"{kind} {file}: no such file, or a folder; give the path of a Python file"
        )
    spec = importlib.util.spec_from_file_location(module_name, file)
    if spec is None or spec.loader is None:
        raise InputError(f"{kind} {file}: not a Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    # Before it runs: dataclasses and pickles of the file look their module up.
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except InputError as error:
        raise InputError(f"{kind} {file}:{_line_in(file, error)}: {message_of(error)}") from error
    except (Exception, SystemExit) as error:
        where = f"{kind} {file}:{_line_in(file, error)}"
        raise InputError(f"{where}: {named(error)}; it must import cleanly") from error


def _line_in(file: Path, error: BaseException) -> int:
    """The line of `file` that raised: of the innermost frame in it, or of a syntax error."""
    if isinstance(error, SyntaxError) and error.lineno:
        return error.lineno
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)
    ]
    return (frames[-1].lineno or 0) if frames else 0
