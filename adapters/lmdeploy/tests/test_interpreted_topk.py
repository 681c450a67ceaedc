"""What docs/findings/31-lmdeploy-topk.md says, with the kernel of each release in a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapters.shared.tests import interpreted

SITES = "MLA_HARNESS_LMDEPLOY_SITES"
RELEASES = interpreted.releases(SITES, "lmdeploy/pytorch/kernels/cuda/bitonic_topk.py")
SCRIPT = Path(__file__).with_name("interpreted_topk.py")


@pytest.fixture(params=RELEASES, ids=interpreted.name_of)
def folder(request: pytest.FixtureRequest) -> Path:
    return interpreted.interpretable(request.param, SITES)


def chosen(folder: Path, *scores: float) -> list[int]:
    return [int(word) for word in interpreted.printed(SCRIPT, folder, *map(str, scores)).split()]


def test_different_scores_are_chosen_once_each(folder: Path) -> None:
    assert chosen(folder, 3, 0.5, 0.25, 2, 0.125, 1) == [0, 3, 5, 1, 2, 4]


def test_of_equal_scores_one_position_comes_back_for_all(folder: Path) -> None:
    found = chosen(folder, 3, 0, 0, 2, 0, 1)
    assert found[:3] == [0, 3, 5] and len(found) == 6
    assert len(set(found[3:])) == 1
