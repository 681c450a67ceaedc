"""What findings.md says of SGLang's Triton kernels, with the kernels of each release that has a
folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.memory.triton_interpreter import REPAIRED_VERSIONS

ROOT = Path(os.environ.get("MLA_HARNESS_SGLANG_SITES") or "no such folder")
FOLDERS = sorted(path for path in ROOT.glob("sglang-*") if (path / "sglang").is_dir())
CELL = "kernel-matrix-decode[kernel=sglang-triton,kv=fp8_e4m3,pattern=nan,site=kv.tail,lengths=one]"


@pytest.fixture(params=FOLDERS or [None], ids=lambda folder: folder.name if folder else "none")
def folder(request: pytest.FixtureRequest) -> Path:
    if request.param is None:
        pytest.skip("MLA_HARNESS_SGLANG_SITES names no folder with a release")
    triton = pytest.importorskip("triton")
    if triton.__version__ not in REPAIRED_VERSIONS:
        pytest.skip("the interpreter of this Triton is not repaired")
    return Path(request.param)


def printed(folder: Path, *words: str) -> str:
    script = Path(__file__).with_name("interpreted_kernels.py")
    environ = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(script), str(folder), *words]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout


def test_a_decode_of_an_fp8_cache_rounds_query_and_probabilities_to_e4m3(folder: Path) -> None:
    assert printed(folder, "decode", CELL, "bf16").startswith("fail out: differs")
    assert printed(folder, "decode", CELL, "fp8").strip() == "pass"


def test_its_query_has_no_scale_so_small_and_large_ones_are_lost(folder: Path) -> None:
    errors = {
        line.split(":")[0]: float(line.split()[-1])
        for line in printed(folder, "small").splitlines()
    }
    assert errors["query of 1"] < 0.03
    assert errors["query of 0.001"] > 0.5 and errors["query of 1000"] > 0.5


def test_a_merge_multiplies_an_empty_side_by_zero(folder: Path) -> None:
    assert printed(folder, "merge").count("512 of 512 are NaN") == 2


def test_one_kernel_for_a_chunk_of_kda_loses_decays_past_the_exponents_of_float32(
    folder: Path,
) -> None:
    """sgl-project/sglang#39971: a short prefill takes that kernel."""
    errors = {
        line.partition(": ")[0]: float(line.split()[-1])
        for line in printed(folder, "decays").splitlines()
    }
    assert errors.pop("2^-250 in 16 tokens, one kernel") > 0.1
    assert len(errors) == 3 and max(errors.values()) < 0.01
