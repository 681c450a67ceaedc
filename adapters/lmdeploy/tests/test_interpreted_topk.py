"""What docs/findings/31-lmdeploy-topk.md says, with the kernel of each release in a folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.memory.triton_interpreter import REPAIRED_VERSIONS

ROOT = Path(os.environ.get("MLA_HARNESS_LMDEPLOY_SITES") or "no such folder")
KERNEL = "lmdeploy/pytorch/kernels/cuda/bitonic_topk.py"
FOLDERS = sorted(path for path in ROOT.glob("*") if (path / KERNEL).is_file())


@pytest.fixture(params=FOLDERS or [None], ids=lambda folder: folder.name if folder else "none")
def folder(request: pytest.FixtureRequest) -> Path:
    if request.param is None:
        pytest.skip("MLA_HARNESS_LMDEPLOY_SITES names no folder with a release")
    triton = pytest.importorskip("triton")
    if triton.__version__ not in REPAIRED_VERSIONS:
        pytest.skip("the interpreter of this Triton is not repaired")
    return Path(request.param)


def chosen(folder: Path, *scores: float) -> list[int]:
    script = Path(__file__).with_name("interpreted_topk.py")
    environ = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(script), str(folder), *map(str, scores)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    return [int(word) for word in done.stdout.split()]


def test_different_scores_are_chosen_once_each(folder: Path) -> None:
    assert chosen(folder, 3, 0.5, 0.25, 2, 0.125, 1) == [0, 3, 5, 1, 2, 4]


def test_of_equal_scores_one_position_comes_back_for_all(folder: Path) -> None:
    found = chosen(folder, 3, 0, 0, 2, 0, 1)
    assert found[:3] == [0, 3, 5] and len(found) == 6
    assert len(set(found[3:])) == 1
