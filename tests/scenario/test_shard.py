"""Cutting a plan into shards."""

from __future__ import annotations

import pytest

from harness.core.errors import InputError
from harness.scenario.shard import Shard, split

KEYS = [f"scenario[case={number}]" for number in range(40)]


def test_every_key_is_in_exactly_one_part_and_parts_keep_the_order_of_the_plan() -> None:
    parts = split(KEYS, 3)
    assert sorted(key for part in parts for key in part) == sorted(KEYS)
    assert all(part == sorted(part, key=KEYS.index) for part in parts)


def test_parts_are_equally_many() -> None:
    assert sorted(len(part) for part in split(KEYS, 3)) == [13, 13, 14]


def test_more_parts_than_keys_leaves_some_empty() -> None:
    assert sorted(len(part) for part in split(KEYS[:2], 4)) == [0, 0, 1, 1]


@pytest.mark.parametrize("text", ["", "1", "1/", "a/b", "0/2", "3/2", "-1/2", "1/2/3", "1 / 2"])
def test_a_shard_that_is_none_is_bad_input(text: str) -> None:
    with pytest.raises(InputError, match="--shard"):
        Shard.parsed(text)
