"""A small project, on which pytest is run as a user would."""

from __future__ import annotations

import pytest


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """An empty project with strict pytest settings; pytest runs in a process of its own, with the
    plug-in.
    """
    pytester.makeini(
        "[pytest]\naddopts = --strict-markers --strict-config -p"
        " torch_poison.pytest_plugin\nfilterwarnings = error\n"
    )
    return pytester
