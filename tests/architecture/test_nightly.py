"""What `tox` leaves to the nightly workflow: parameters behind the first."""

from __future__ import annotations

import pytest

ONE_TEST = """
import pytest

@pytest.mark.parametrize("number", [pytest.param(9, marks=pytest.mark.nightly), *range(5)])
@pytest.mark.first(2)
def test_numbers(number): pass

def test_other(): pass
"""


def test_parameters_behind_the_first_are_nightly(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmarkers =\n    nightly\n    first(count)\n")
    pytester.makepyfile(ONE_TEST)
    plugin = ("-p", "tests.nightly", "-p", "no:cacheprovider")
    daily = pytester.runpytest_inprocess(*plugin, "-m", "not nightly", "-v")
    daily.assert_outcomes(passed=3, deselected=4)
    daily.stdout.fnmatch_lines(["*test_numbers?0?*", "*test_numbers?1?*", "*test_other*"])
    pytester.runpytest_inprocess(*plugin, "-m", "nightly").assert_outcomes(passed=4, deselected=3)
    pytester.runpytest_inprocess(*plugin).assert_outcomes(passed=7)
