from __future__ import annotations

from harness.core.finding_words import merged, place, ranges
from harness.core.findings import Finding


def test_neighbouring_rows_are_one_range():
    assert ranges([5, 0, 1, 2]) == "0-2, 5"
    assert ranges([7]) == "7"


def test_a_long_list_of_ranges_is_cut_with_a_count(approved):
    approved(ranges(range(0, 40, 2)))


def test_a_place_of_a_one_dimensional_tensor_needs_no_index(approved):
    assert place("token", [3], (3,)) == "token 3"
    approved(place("token", [3], (3, 1)))


def test_findings_about_other_tensors_sites_or_causes_stay_apart_whatever_their_words(approved):
    findings = [
        Finding(oracle="finite", tensor="out 1", site="a", cause="nan", message="NaN: 3 elements"),
        Finding(
            oracle="finite",
            tensor="out 2",
            site="a",
            cause="nan",
            message="4 elements are no numbers",
        ),
        Finding(oracle="finite", tensor="out 2", site="a", cause="inf", message="NaN: 4 elements"),
        Finding(oracle="finite", tensor="out 3", site="b", message="NaN: 4 elements"),
        Finding(oracle="finite", tensor="lse", site="a", message="NaN: 4 elements"),
    ]
    kept = merged(findings)
    assert [finding.tensor for finding in kept] == ["out 1", "out 2", "out 3", "lse"]
    approved(kept[0].message)
