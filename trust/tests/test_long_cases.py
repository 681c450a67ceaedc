"""The choice of the cases that a run of everything leaves out."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from harness.core.cases import Case
from harness.scenario.matrix import is_selected
from trust.arrays.long_cases import Timed, as_yaml, covering_points, left_out

AXES = {"kv": ["bf16", "fp8", "fp32"], "graph": ["none", "full"], "pages": ["1", "2"]}
EVERY = [
    {"kv": kv, "graph": graph, "pages": pages}
    for kv in AXES["kv"]
    for graph in AXES["graph"]
    for pages in AXES["pages"]
]


def timed(name: str, seconds: float, *pairs: int, system: str = "engine", tag: str = "x") -> Timed:
    scenario = name.partition("[")[0]
    params = {"task": "gsm_symbolic"} if system == "accuracy" else {}
    op = "mla_decode" if system == "kernel" else None
    case = Case(id=name, scenario=scenario, system=system, op=op, params=params, tags=(tag,))
    return Timed(case, seconds, {("engine", ("tokens", str(one)), ("heads", "1")) for one in pairs})


def ids(found: list[Timed]) -> list[str]:
    return [one.case.id for one in found]


@given(st.sets(st.integers(0, len(EVERY) - 1), min_size=1, max_size=len(EVERY) - 1))
def test_the_points_hold_the_cases_and_no_other(chosen: set[int]) -> None:
    found = covering_points([EVERY[one] for one in sorted(chosen)], EVERY)
    written = yaml.safe_load(as_yaml(found))["long"]
    held = {
        place
        for place, labels in enumerate(EVERY)
        if any(is_selected(labels, point) for point in written)
    }
    assert held == chosen


def test_the_case_whose_pairs_others_show_goes_first() -> None:
    cases = [timed("a[x=1]", 1.0, 1), timed("a[x=2]", 1.0, 1, 2), timed("a[x=3]", 1.0, 3)]
    found, lost = left_out(cases, (), seconds=1.0)
    assert (ids(found), lost) == (["a[x=1]"], 0)


def test_pairs_that_are_given_up_are_counted() -> None:
    found, lost = left_out([timed("a[x=1]", 1.0, 1), timed("a[x=2]", 1.0, 2)], (), seconds=9.0)
    assert (len(found), lost) == (1, 1), "a scenario keeps one case"


def test_a_kernel_gives_up_no_pair() -> None:
    shown = (1, 2, 3, 3)
    cases = [timed(f"k[y={n}]", 1.0, one, system="kernel") for n, one in enumerate(shown)]
    found, lost = left_out(cases, (), seconds=9.0)
    assert (ids(found), lost) == (["k[y=2]"], 0)


@pytest.mark.parametrize(
    "staying",
    [
        timed("a[x=1]", 0.05, 1),
        timed("a[x=1]", 1.0, 1, tag="limits"),
        timed("a@x=1", 1.0, 1),
        timed("a[accuracy=gsm_symbolic]", 1.0, 1, system="accuracy"),
    ],
)
def test_what_pairs_say_nothing_of_stays(staying: Timed) -> None:
    other = timed("a[x=2]", 0.01, 1)
    assert left_out([staying, other], (), seconds=9.0) == ([], 0)


def test_the_case_of_a_fault_stays() -> None:
    cases = [timed("a[x=1]", 1.0, 1), timed("a[x=2]", 1.0, 1)]
    found, _ = left_out(cases, ["a[x=1]"], seconds=9.0)
    assert ids(found) == ["a[x=2]"]
