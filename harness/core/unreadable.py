"""What a command left out because it could not be read: lines of stored files, and runs of the
past.

What is left out may be a failure that no report shows. So it is noted where it is left out, and the
command line warns of each file and ends in no 0.
"""

from __future__ import annotations

from pathlib import Path

_lines: dict[Path, set[int]] = {}
_others: dict[str, None] = {}


def note_line(path: Path, number: int) -> None:
    """Line `number` of a file, counted from 1, is left out.

    It may be noted each time that the file is read.
    """
    _lines.setdefault(path, set()).add(number)


def note(reason: str) -> None:
    """Something is left out for a reason that names its file."""
    _others[reason] = None


def num_lines(path: Path) -> int:
    """How many lines of a file were left out."""
    return len(_lines.get(path, ()))


def warnings() -> list[str]:
    """A sentence for each file that was not read whole since :func:`forget`."""
    found = []
    for path, numbers in _lines.items():
        many = f"{len(numbers)} lines cannot be read, line {min(numbers)} first"
        lines = many if len(numbers) > 1 else f"line {min(numbers)} cannot be read"
        found.append(
            f"{path}: {lines}; what was there is left out; `--resume` of its run does it again"
        )
    return [*found, *(f"left out: {reason}" for reason in _others)]


def forget(path: Path | None = None) -> None:
    """Forget the lines of a file that was mended; without a file forget all, as another command
    begins.
    """
    if path is None:
        _lines.clear()
        _others.clear()
    else:
        _lines.pop(path, None)
