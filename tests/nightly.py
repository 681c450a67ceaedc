"""`@pytest.mark.first(N)`: of a test's parameters `tox` runs N, the nightly all others.

For parameters that differ in what they show but hardly in what can break them. They are
the first that are not nightly by a mark of their own; the order is the file's, so that the choice
is the same in each process.
"""

from __future__ import annotations

from collections import Counter

import pytest


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the parameters behind the first as nightly."""
    seen: Counter[str] = Counter()
    for item in items:
        mark = item.get_closest_marker("first")
        if mark is None or item.get_closest_marker("nightly"):
            continue
        function = item.nodeid.partition("[")[0]
        seen[function] += 1
        if seen[function] > mark.args[0]:
            item.add_marker(pytest.mark.nightly)
