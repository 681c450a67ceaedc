"""No command that reads a run folder prints a traceback, hangs, or ends in 0 with wrong counts,
whatever lies there.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.damaged_runs import DAMAGES, FILES, READERS, prepare, read


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Whole run folders of every kind."""
    folder = tmp_path_factory.mktemp("prepared")
    prepare(folder)
    return folder


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if one.is_quick else pytest.mark.nightly)
        for name, one in READERS.items()
    ],
)
def test_a_damaged_file_is_refused_or_left_out_aloud(
    name: str, damage: str, prepared: Path, tmp_path: Path
) -> None:
    files = FILES[READERS[name].kind]
    assert [line for file in files for line in read(name, file, damage, prepared, tmp_path)] == []
