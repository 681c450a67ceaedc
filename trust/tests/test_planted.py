"""Planted kernels: each is red under the cases made for it, and the blame names its memory or
none.
"""

from __future__ import annotations

import pytest

from harness.scenario.load import load_scenarios
from trust.planted.__main__ import blame_word
from trust.planted.plant import Planted, all_planted, blame_of, cases_of, failures

CAUGHT_BY = [
    s.name
    for s in load_scenarios(None)
    if s.system == "kernel" and ("limits" in s.tags or s.name.startswith("reject-"))
]


def _first_of_each_op(file: str) -> list[object]:
    """The kernels of a file; all but the first of each op are judged every night."""
    seen: set[str] = set()
    found: list[object] = []
    for one in all_planted(file):
        marks = pytest.mark.nightly if one.spec.op in seen else ()
        seen.add(one.spec.op)
        found.append(pytest.param(one, marks=marks, id=one.name))
    return found


@pytest.mark.parametrize("one", [*_first_of_each_op("sizes"), *_first_of_each_op("values")])
def test_an_error_at_the_sizes_or_values_of_models_is_red_and_blamed_rightly(one: Planted) -> None:
    job, result = next(failures(cases_of(one, CAUGHT_BY)))
    assert blame_word(one, blame_of(job, result)) in ("right", "rightly none"), result.reason


@pytest.mark.parametrize("one", _first_of_each_op("public"))
def test_an_error_of_a_public_kernel_is_red_and_blamed_rightly(one: Planted) -> None:
    job, result = next(failures(cases_of(one)))
    assert blame_word(one, blame_of(job, result)) in ("right", "rightly none"), result.reason


def test_a_blame_says_when_the_rows_are_wrong_whatever_the_memory_holds() -> None:
    """The scale of padding stands beside a live row, and other live rows have each other's."""
    one = next(one for one in all_planted("public") if one.name == "scales-viewed-for-transposed")
    job, result = next(failures(cases_of(one, ["limits-quantize"])))
    blame = blame_of(job, result)
    assert blame.sites == ("scale.pad",)
    assert "reference" in blame.how
