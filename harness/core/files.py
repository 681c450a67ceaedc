"""Files that survive a crash: atomic replacement, flushed JSON lines, and texts kept for the reader of an error."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def write_atomic(path: Path, text: str) -> None:
    """Replace a file by `text` at once: a reader sees the old file or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def append_line(path: Path, line: str) -> None:
    """Append one line and flush it to disk. A torn last line is ended first."""
    with path.open("a+b") as stream:
        size = stream.seek(0, os.SEEK_END)
        if size:
            stream.seek(size - 1)
            if stream.read(1) != b"\n":
                stream.write(b"\n")
        stream.write(line.encode() + b"\n")
        stream.flush()
        os.fsync(stream.fileno())


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield each complete JSON object. A torn line is skipped, as its case never finished."""
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as stream:
        for line in stream:
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                continue


def keep_for_reader(text: str, kind: str) -> str:
    """Write `text` to a new file of the temporary folder, for the reader of an error. Returns its path."""
    with contextlib.suppress(OSError):
        handle, name = tempfile.mkstemp(prefix="mla-harness-", suffix=f".{kind}.txt")
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as stream:
            stream.write(text)
        return name
    return "no file (none could be written)"
