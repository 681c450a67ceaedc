"""Cases spread over pytest-xdist's workers."""

from __future__ import annotations

from pathlib import Path

import pytest


def test_cases_run_on_two_workers(project: pytest.Pytester, merge: Path) -> None:
    project.runpytest_subprocess("-n", "2", "scenarios/").assert_outcomes(passed=2)
