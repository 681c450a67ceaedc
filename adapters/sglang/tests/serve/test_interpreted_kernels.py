"""What findings.md says of SGLang's Triton kernels, with the kernels of each release that has a
folder.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from adapters.shared.tests import interpreted

SITES = "MLA_HARNESS_SGLANG_SITES"
SCRIPT = Path(__file__).with_name("interpreted_kernels.py")
CELL = "kernel-matrix-decode[kernel=sglang-triton,kv=fp8_e4m3,pattern=nan,site=kv.tail,lengths=one]"


@pytest.fixture(params=interpreted.releases(SITES, "sglang"), ids=interpreted.name_of)
def folder(request: pytest.FixtureRequest) -> Path:
    return interpreted.interpretable(request.param, SITES)


def printed(folder: Path, *words: str) -> str:
    return interpreted.printed(SCRIPT, folder, *words)


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
