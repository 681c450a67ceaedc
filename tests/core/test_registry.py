"""Registries: an entry is never replaced, but for the length of a block."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from harness.core.errors import InputError
from harness.core.registry import MAX_LISTED, Registry, nearest


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


def test_a_name_is_taken_once_and_only_additions_count() -> None:
    before = Registry.num_added
    registry = Registry("thing", (Row("a"),))
    assert Registry.num_added == before
    registry.add(Row("b"))
    assert Registry.num_added == before + 1
    with pytest.raises(InputError, match="thing 'a' is registered already"):
        registry.add(Row("a"))


MANY = [
    f"{first}-{second}" for first in ("decode", "merge", "sparse") for second in map(str, range(9))
]


@pytest.mark.parametrize(
    ("name", "known", "says"),
    [
        (
            "dec",
            MANY,
            (
                "did you mean 'decode-0', 'decode-1', 'decode-2', 'decode-3' or 'decode-4' (4 more"
                " begin so)?"
            ),
        ),
        (
            "my_merge.py",
            MANY,
            "the nearest are merge-0, merge-1, merge-2, merge-3, merge-4; see `x` for all 27",
        ),
        ("xyz", MANY, "none of the 27 known is like it; see `x`"),
        ("xyz", MANY[:3], "known: decode-0, decode-1, decode-2"),
        ("xyz", [], "there are none"),
    ],
)
def test_an_unknown_name_is_answered_with_names_like_it_or_with_all_of_a_few(
    name: str, known: list[str], says: str
) -> None:
    assert len(MANY) > MAX_LISTED
    assert nearest(name, known, see="x") == says
