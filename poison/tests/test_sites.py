"""A program gives its own kinds of memory tags, and none is given twice."""

from __future__ import annotations

import pytest
import torch
from torch_poison import sites
from torch_poison.errors import PoisonError
from torch_poison.patterns import Poison, bits_view, sentinel_bits, site_of_bits


def test_a_registered_site_is_written_and_read_back() -> None:
    sites.register({"mine": 9})
    tensor = Poison("nan", frozenset({"mine"})).empty(2, dtype=torch.float32, site="mine")
    assert site_of_bits(torch.float32, int(bits_view(tensor)[0])) == "mine"


def test_a_source_is_asked_once_and_only_when_a_site_is_unknown() -> None:
    asked: list[int] = []

    def source() -> dict[str, int]:
        asked.append(1)
        return {"mine": 9}

    sites.ask(source)
    sentinel_bits(torch.float32, "output")
    assert not asked
    assert sites.site_of(9) == "mine" and sites.tag_of("mine") == 9
    assert sites.site_of(10) is None and len(asked) == 1


@pytest.mark.parametrize(
    ("tags", "says"),
    [
        ({"mine": 0}, "tag 0 is not in 1 to 60"),
        ({"mine": 61}, "tag 61 is not in 1 to 60"),
        ({"output": 9}, "it has tag 1 already, not 9"),
        ({"mine": 1}, "tag 1 is that of 'output'"),
    ],
)
def test_a_name_or_a_tag_that_is_taken_or_does_not_fit_is_refused(
    tags: dict[str, int], says: str
) -> None:
    with pytest.raises(PoisonError, match=says):
        sites.register(tags)


def test_a_site_that_is_there_with_its_tag_stays() -> None:
    sites.register({"output": 1})
    assert sites.tag_of("output") == 1


def test_a_site_that_nothing_registered_is_an_error_that_says_how_to_mend_it() -> None:
    with pytest.raises(PoisonError, match=r"'mine' has no tag; .* torch_poison\.sites"):
        sentinel_bits(torch.float32, "mine")
