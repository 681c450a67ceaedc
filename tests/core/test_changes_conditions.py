"""What happened to an engine, in pairs: which are counted, and which cannot be."""

from __future__ import annotations

import pytest

from harness.core.conditions.changes import SPACE, read


def pairs(*happened: str) -> list[tuple[str | int | None, str | int | None]]:
    return [(point["first"], point["then"]) for point in read(happened, has_graph=False)]


@pytest.mark.parametrize(
    ("happened", "found"),
    [
        (("reload", "sleep"), [("reload", "sleep")]),
        (("hit", "abort"), []),
        (("hit", "reload"), [("hit", "reload")]),
        (
            ("reload", "hit", "preempt"),
            [("reload", "hit"), ("reload", "preempt"), ("hit", "preempt")],
        ),
        # The second change may repair what the first one left.
        (("reload", "sleep", "hit"), [("reload", "sleep"), ("sleep", "hit")]),
    ],
)
def test_a_pair_has_no_other_change_between_and_begins_with_a_change(
    happened: tuple[str, ...], found: list[tuple[str, str]]
) -> None:
    assert pairs(*happened) == found


def test_a_replayed_pair_is_told_from_one_without_graphs() -> None:
    assert {point["graph"] for point in read(("reload", "hit"), has_graph=True)} == {"captured"}


def test_experts_and_adapters_are_never_together() -> None:
    assert SPACE.why_not([("first", "move_experts"), ("then", "switch_adapter")])
    assert not SPACE.why_not([("first", "move_experts"), ("then", "move_experts")])
