"""Scripts for a GPU, tried on a CPU with other cases: they end in a table, and never in an error of
their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.transcripts import Approved, lines_with

ROOT = Path(__file__).parents[2]


def ran(tmp_path: Path, script: str, *words: str, **settings: str) -> str:
    """What a script prints; OUT is `tmp_path / "out"`, runs stay in `tmp_path / "runs"`."""
    environ = {
        **os.environ,
        "DEVICE": "cpu",
        "WORKERS": "1",
        "PYTHON": sys.executable,
        "RUNS": str(tmp_path / "runs"),
        **settings,
    }
    command = ["bash", str(ROOT / "benchmarks" / script), str(tmp_path / "out"), *words]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.nightly
def test_the_table_of_seeds_has_a_row_for_each_repetition_of_all_calls(tmp_path: Path) -> None:
    case = "context-ranks"
    first = ran(tmp_path, "gpu_seeds.sh", "alone", SELECTED=case)
    assert "01-alone" in first and "02-" not in first
    second = ran(tmp_path, "gpu_seeds.sh", "beside", "alone", SELECTED=case, SECONDS_IN_ALL="1")
    assert second.count("left out: ") == 2 and "call again" in second
    rows = [line.split() for line in second.splitlines() if "01-alone" in line]
    assert rows and all("caught" in row for row in rows)
    assert f"{len(rows)} of {len(rows)} caught" in second
    with tarfile.open(tmp_path / "out" / "seeds.tar.gz") as packed:
        assert any(name.endswith("faults.jsonl") for name in packed.getnames())


@pytest.mark.nightly
def test_the_run_of_the_engine_names_what_is_bad_and_what_is_left(
    tmp_path: Path, approved: Approved
) -> None:
    told = ran(
        tmp_path, "gpu_engine.sh", "engine", "pools", SELECTED="context-ranks", POOLS_SECONDS="1"
    )
    approved(lines_with(told, "engine: exit code", "== engine: 5"))
    assert "pools: exit code" in told and "pools: 5 pass" not in told
    with tarfile.open(tmp_path / "out" / "engine.tar.gz") as packed:
        assert any(name.endswith("results.jsonl") for name in packed.getnames())
