"""Lines of stored files that a command could not read, noted where they were read.

A line that is left out may be a failure that no report shows. So the command line warns of each file, and ends in no 0.
"""

from __future__ import annotations

from pathlib import Path

_lines: dict[Path, set[int]] = {}


def note(path: Path, number: int) -> None:
    """Line `number` of a file, counted from 1, cannot be read. It may be noted each time that the file is read."""
    _lines.setdefault(path, set()).add(number)


def noted() -> dict[Path, list[int]]:
    """Each file with the numbers of its lines that could not be read since :func:`forget`."""
    return {path: sorted(numbers) for path, numbers in _lines.items()}


def count_in(path: Path) -> int:
    """How many lines of a file could not be read."""
    return len(_lines.get(path, ()))


def forget(path: Path | None = None) -> None:
    """Forget the lines of a file that was mended; without a file all lines, as another command begins."""
    if path is None:
        _lines.clear()
    else:
        _lines.pop(path, None)
