"""Cutting a plan into shards."""

from __future__ import annotations

import pytest

from harness.core.errors import InputError
from harness.scenario.shard import Shard, split

KEYS = [f"scenario[case={number}]" for number in range(40)]


def test_every_key_is_in_exactly_one_part_and_parts_keep_the_order_of_the_plan() -> None:
    parts = split(KEYS, 3, {})
    assert sorted(key for part in parts for key in part) == sorted(KEYS)
    assert all(part == sorted(part, key=KEYS.index) for part in parts)


def test_without_times_parts_are_equally_many() -> None:
    assert sorted(len(part) for part in split(KEYS, 3, {})) == [13, 13, 14]


def test_parts_are_balanced_by_time_and_not_by_number() -> None:
    seconds = {key: 0.1 for key in KEYS} | {KEYS[0]: 3.9}
    heavy, light = sorted(split(KEYS, 2, seconds), key=len)
    assert heavy == [KEYS[0]] and len(light) == 39


def test_the_noise_of_timing_moves_no_key() -> None:
    seconds = {key: 2.0 ** (number % 7) for number, key in enumerate(KEYS)}
    noisy = {key: value * (1 + 0.02 * (-1) ** number) for number, (key, value) in enumerate(seconds.items())}
    assert split(KEYS, 4, seconds) == split(KEYS, 4, noisy)


def test_a_key_that_nobody_timed_counts_as_a_usual_one() -> None:
    seconds = {key: 2.0 for key in KEYS[:39]}
    assert sorted(len(part) for part in split(KEYS, 2, seconds)) == [20, 20]


def test_more_parts_than_keys_leaves_some_empty() -> None:
    assert sorted(len(part) for part in split(KEYS[:2], 4, {})) == [0, 0, 1, 1]


@pytest.mark.parametrize("text", ["", "1", "1/", "a/b", "0/2", "3/2", "-1/2", "1/2/3", "1 / 2"])
def test_a_shard_that_is_none_is_bad_input(text: str) -> None:
    with pytest.raises(InputError, match="--shard"):
        Shard.parsed(text)
