"""The one reader of files in run folders, which trusts none of them, and the writer of their lines.

A kill tears the last line of a file, a power loss leaves NULs, a full disk cuts, and people edit,
copy and link. So a file may be half a line, no text, JSON that nests too deep, or no file at all
but a folder, a pipe or a device. A reader here never waits, never reads without end, and never
raises anything but InputError, in one line that names the file.

A line that cannot be read is left out and noted (:mod:`harness.core.unreadable`), and the command
line ends in no 0 then. Only a torn last line is not noted. It is what a kill leaves, and its case
counts as not run.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import stat
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from harness.core import unreadable
from harness.core.errors import InputError, explained_writes
from harness.core.files import write_atomic
from harness.core.params import STORED, Record
from harness.core.records import SCHEMA_VERSION

RecordT = TypeVar("RecordT", bound=Record)
ValueT = TypeVar("ValueT")

MOST_BYTES = 1 << 30
"""No file that is read as a whole is larger."""
MOST_LINE_BYTES = 1 << 26
"""No line is longer: a result with all its logs has some kilobytes."""
MOST_DEPTH = 100
"""No JSON document nests deeper.

Python's parser and pydantic's writer stop at other depths, with other errors.
"""
MOST_DIGITS = 300
"""No whole number has more, so each is a finite float too."""
DAMAGED = ".damaged"
"""Added to the name of a file that :func:`set_aside` keeps."""

SYNC_SECONDS = 1.0
"""How much of a run a machine that loses its power may forget.

A process that ends loses nothing.
"""

_synced: dict[Path, float] = {}
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


class NoFile(InputError):
    """There is no file of that name."""


def opened(path: Path) -> BinaryIO:
    """A regular file, open for reading.

    Raises NoFile without one, and InputError for a folder, a pipe or a device.
    """
    try:
        # Without O_NONBLOCK, opening a pipe waits for a writer.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        if os.path.lexists(path):
            raise InputError(
                f"{path}: a link to a file that is not there; restore the file, or remove it"
            ) from None
        raise NoFile(f"{path}: no such file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    kind = stat.S_IFMT(os.fstat(handle).st_mode)
    if kind != stat.S_IFREG:
        os.close(handle)
        raise InputError(
            f"{path}: is {_KINDS.get(kind, 'no regular file')}, and should be a file; remove it"
        )
    return os.fdopen(handle, "rb")


def read_text(path: Path) -> str:
    """The whole text of a file.

    Raises NoFile, and InputError for one that is too large or no UTF-8.
    """
    with opened(path) as stream:
        if os.fstat(stream.fileno()).st_size > MOST_BYTES:
            raise InputError(
                f"{path}: larger than {MOST_BYTES >> 30} GiB, so it is none of ours; remove it"
            )
        try:
            # The file may have grown since its size was asked for.
            return stream.read(MOST_BYTES).decode()
        except UnicodeDecodeError:
            raise InputError(
                f"{path}: damaged: it is no UTF-8 text; restore it, or remove it"
            ) from None
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from None


def read_json(path: Path) -> Any:
    """The JSON document in a file. Raises NoFile, and InputError for anything else."""
    text = read_text(path)
    try:
        found = parsed(text)
        if _is_deeper(found, MOST_DEPTH):
            raise ValueError("it nests too deep")
    except ValueError as error:
        raise InputError(
            f"{path}: damaged, cannot be read: {error}; restore it, or remove it"
        ) from None
    return found


def parsed(text: str) -> Any:
    """The JSON in a text.

    Raises ValueError for no JSON, for NaN and infinity, and for too deep a nesting.
    """
    try:
        return json.loads(
            # NaN is no JSON, and a damaged number must not become one.
            text,
            parse_float=_number,
            parse_int=_whole_number,
            parse_constant=_number,
        )
    except RecursionError:
        raise ValueError("it nests too deep") from None


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is no finite number")
    return number


def _whole_number(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


def _is_deeper(value: Any, most: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    # The depth is asked of what was read, as the parser's own limit depends on the stack.
    return most < 0 or any(_is_deeper(one, most - 1) for one in inner)


def read_lines(path: Path) -> Iterator[Any]:
    """The JSON of each line, of no line without a file.

    A line that cannot be read is noted and left out.
    """
    for number, line in _numbered(path):
        try:
            found = parsed(line.decode())
        except ValueError:
            if not _is_torn(line):
                unreadable.note_line(path, number)
            continue
        yield found


def read_records(path: Path, kind: type[RecordT], *, versioned: bool = True) -> list[RecordT]:
    """The record of each line.

    Raises InputError for a line that is no such record, or of another version.
    """
    return [record_of(kind, raw, path, versioned=versioned) for raw in read_lines(path)]


def record_of(kind: type[RecordT], raw: Any, file: Path, *, versioned: bool = True) -> RecordT:
    """`raw` as a record of `file`. Raises InputError for no such record, or one of another version.

    A record that is not `versioned` need not say its version.
    """
    if versioned and not (isinstance(raw, dict) and isinstance(raw.get("schema_version"), int)):
        raise InputError(f"{file}: not written by mla-harness (no schema_version)")
    own = kind.model_fields.get("schema_version")
    check_version(raw, file, SCHEMA_VERSION if own is None else own.default)
    with _explained_damage(file):
        # A rule may be newer than the run, which must stay readable.
        return kind.model_validate(raw, context=STORED)


def value_of(kind: TypeAdapter[ValueT], raw: Any, file: Path) -> ValueT:
    """`raw` of `file` as a value that is no record.

    Raises InputError for another one, or one of another version.
    """
    check_version(raw, file, SCHEMA_VERSION)
    with _explained_damage(file):
        return kind.validate_python(raw)


def check_version(raw: Any, file: Path, reads: int) -> None:
    """Raise InputError for a file that a newer or an older version wrote. What says no version
    passes.
    """
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if not isinstance(version, int) or version == reads:
        return
    if version > reads:
        raise InputError(
            f"{file}: written by a newer mla-harness (schema {version}, this one reads {reads});"
            " update mla-harness"
        )
    environment = raw.get("environment")
    writer = environment.get("harness") if isinstance(environment, dict) else None
    by = f"version {writer}" if isinstance(writer, str) else "an older version"
    raise InputError(
        f"{file}: written by {by} of mla-harness (schema {version}, this one reads {reads});"
        " run again"
    )


@contextlib.contextmanager
def _explained_damage(file: Path) -> Iterator[None]:
    try:
        yield
    except (AttributeError, KeyError, TypeError) as error:
        # A validator of a record was made for what the harness writes.
        raise InputError(
            f"{file}: damaged: {type(error).__name__}: {error}; restore it, or remove it"
        ) from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise InputError(
            f"{file}: damaged: {where}: {first['msg']}; restore it, or remove it"
        ) from None


def append_line(path: Path, line: str) -> None:
    """Append a line. Synced at most once in SYNC_SECONDS. Raises GoneError without a folder."""
    with explained_writes(path), path.open("a+b") as stream:
        _end_last_line(stream)
        stream.write(line.encode() + b"\n")
        stream.flush()
        if time.monotonic() - _synced.get(path, -SYNC_SECONDS) >= SYNC_SECONDS:
            os.fsync(stream.fileno())
            _synced[path] = time.monotonic()


def _end_last_line(stream: BinaryIO) -> None:
    """Cut off a torn last line, which no reader took for written, and end any other one that has no
    end.
    """
    size = stream.seek(0, os.SEEK_END)
    if not size:
        return
    stream.seek(size - 1)
    if stream.read(1) == b"\n":
        return
    stream.seek(0)
    # Reads the whole file, but only after a kill: each line is written with its end.
    last = deque(stream, maxlen=1)[0]
    if _is_torn(last):
        stream.truncate(size - len(last))
    else:
        # A whole line without its end was read as written, so it stays, and the next one begins
        # behind it.
        stream.write(b"\n")


def set_aside(path: Path) -> int:
    """Take the lines that cannot be read out of a file, and keep the file as it was beside it.

    Returns their number.

    A run that goes on does the part of these lines again.
    """
    kept: list[bytes] = []
    num_bad = num_torn = 0
    for _, line in _numbered(path):
        try:
            parsed(line.decode())
            kept.append(line.rstrip(b"\n"))
        except ValueError:
            num_torn += _is_torn(line)
            num_bad += not _is_torn(line)
    if num_bad:
        shutil.copyfile(path, path.with_name(path.name + DAMAGED))
    if num_bad or num_torn:
        write_atomic(path, "".join(f"{line.decode()}\n" for line in kept))
        unreadable.forget(path)
    return num_bad


def _numbered(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a file with their numbers from 1, but empty ones.

    Of a line that is too long only its beginning.
    """
    try:
        stream = opened(path)
    except NoFile:
        return
    with stream:
        number = 0
        while line := _line_of(stream, path):
            number += 1
            is_too_long = len(line) == MOST_LINE_BYTES and not line.endswith(b"\n")
            if line.strip():
                # With an end, as a part is no torn line.
                yield number, line + (b"\n" if is_too_long else b"")
            while is_too_long and (more := _line_of(stream, path)):
                is_too_long = not more.endswith(b"\n")


def _line_of(stream: BinaryIO, path: Path) -> bytes:
    try:
        return stream.readline(MOST_LINE_BYTES)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None


def _is_torn(line: bytes) -> bool:
    """Whether an unreadable line is the last of its file, and the beginning of an object: a kill
    leaves such a line.

    The NULs that a power loss leaves are none.
    """
    if line.endswith(b"\n"):
        return False
    try:
        is_object = isinstance(
            from_json(line, allow_inf_nan=False, allow_partial="trailing-strings"), dict
        )
    except ValueError:
        return False
    try:
        from_json(line)
    except ValueError:
        return is_object
    # It is whole. Something else is wrong with it, such as a number that is not finite.
    return False
