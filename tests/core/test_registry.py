"""Registries: an entry is never replaced, but for the length of a block."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from harness.core.errors import InputError
from harness.core.registry import MAX_LISTED, Registry, nearest
from tests.transcripts import Approved


@dataclass(frozen=True)
class Row:
    name: str
    summary: str = ""


def test_within_scoped_an_entry_is_added_or_replaced_and_afterwards_all_is_as_before() -> None:
    registry = Registry("thing", (Row("a", "first"),))
    with pytest.raises(ZeroDivisionError), registry.scoped(Row("a", "second"), Row("b")):
        registry.add(Row("c"))
        assert registry.names() == ["a", "b", "c"] and registry.get("a").summary == "second"
        raise ZeroDivisionError
    assert registry.names() == ["a"] and registry.get("a").summary == "first"


def test_a_name_is_taken_once_and_only_additions_count(approved: Approved) -> None:
    before = Registry.num_added
    registry = Registry("thing", (Row("a"),))
    assert Registry.num_added == before
    registry.add(Row("b"))
    assert Registry.num_added == before + 1
    with approved.raises(InputError):
        registry.add(Row("a"))


MANY = [
    f"{first}-{second}" for first in ("decode", "merge", "sparse") for second in map(str, range(9))
]


def test_an_unknown_name_is_answered_with_names_like_it_or_with_all_of_a_few(
    approved: Approved,
) -> None:
    assert len(MANY) > MAX_LISTED
    for name, known in [
        ("dec", MANY),
        ("my_merge.py", MANY),
        ("xyz", MANY),
        ("xyz", MANY[:3]),
        ("xyz", []),
    ]:
        approved(nearest(name, known, see="x"), f"{name} of {len(known)}")
