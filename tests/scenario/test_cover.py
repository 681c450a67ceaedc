"""Few points that hold every pair, or every three, of labels."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.scenario.cover import Exceptions, covering

AXES = {
    name: [f"{name}{i}" for i in range(size)]
    for name, size in zip("abcdef", (3, 2, 4, 2, 5, 3), strict=True)
}


def held(points: list[dict[str, str]], strength: int = 2) -> set[frozenset[tuple[str, str]]]:
    return {
        frozenset(part)
        for point in points
        for part in itertools.combinations(point.items(), strength)
    }


def every_point(axes: dict[str, list[str]]) -> list[dict[str, str]]:
    return [dict(zip(axes, labels, strict=True)) for labels in itertools.product(*axes.values())]


# 720 points in all. No array of pairs has fewer than 5 x 4 points, none of triples fewer than 5 x 4
# x 3.
@pytest.mark.parametrize(("strength", "least", "most"), [(2, 20, 30), (3, 60, 95)])
def test_every_choice_is_held_by_far_fewer_points_than_all(
    strength: int, least: int, most: int
) -> None:
    points = covering(AXES, strength, Exceptions(), "x")
    assert held(points, strength) == held(every_point(AXES), strength)
    assert least <= len(points) <= most
    assert points[0] == {axis: labels[0] for axis, labels in AXES.items()}
    assert all(list(point) == list(AXES) for point in points)


def test_the_same_seed_gives_the_same_points_and_another_seed_others() -> None:
    first, again, other = (covering(AXES, 2, Exceptions(), seed) for seed in ("x", "x", "y"))
    assert first == again != other


@given(st.sampled_from(AXES["a"]), st.sampled_from(AXES["c"]), st.sampled_from(AXES["e"]))
def test_no_point_is_excluded_and_the_pairs_of_other_points_are_all_held(
    a: str, c: str, e: str
) -> None:
    def is_excluded(labels: dict[str, str]) -> bool:
        return (labels.get("a"), labels.get("c")) == (a, c) or labels.get("e") == e

    points = covering(AXES, 2, Exceptions([{"a": [a], "c": [c]}, {"e": [e]}]), "x")
    assert points and not any(is_excluded(point) for point in points)
    assert held(points) == held([point for point in every_point(AXES) if not is_excluded(point)])


@pytest.mark.parametrize("axes", [{}, {"a": ["1", "2"]}])
def test_without_two_axes_there_is_a_point_for_each_label(axes: dict[str, list[str]]) -> None:
    assert covering(axes, 2, Exceptions(), "x") == [{"a": label} for label in axes.get("a", [])]
