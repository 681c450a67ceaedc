"""No command that reads a run folder prints a traceback, hangs, or ends in 0 with wrong counts,
whatever lies there.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.damaged_runs import DAMAGES, FILES, READERS, prepare, read

UNLIKE = ("NULs", "cut off", "NaN", "a newer schema", "a folder")
"""Damages that end at unlike places: no line, half a line, a value, a version, no file."""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Whole run folders of every kind."""
    folder = tmp_path_factory.mktemp("prepared")
    prepare(folder)
    return folder


def _marks(name: str, damage: str) -> tuple[pytest.MarkDecorator, ...]:
    """One command takes all damages by day, as all read a file by the same code; the others take
    those that their own code could meet.
    """
    is_by_day = READERS[name].is_quick and (name == "report" or damage in UNLIKE)
    return () if is_by_day else (pytest.mark.nightly,)


@pytest.mark.first(2)
@pytest.mark.parametrize(
    ("name", "damage"),
    [
        pytest.param(name, damage, marks=_marks(name, damage))
        for name in READERS
        for damage in DAMAGES
    ],
)
def test_a_damaged_file_is_refused_or_left_out_aloud(
    name: str, damage: str, prepared: Path, tmp_path: Path
) -> None:
    files = FILES[READERS[name].kind]
    assert [line for file in files for line in read(name, file, damage, prepared, tmp_path)] == []
