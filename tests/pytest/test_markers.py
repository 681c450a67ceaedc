"""Tags are markers, known under --strict-markers."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.mark.parametrize(("expression", "count"), [("kernel", 2), ("not prefill", 0)])
def test_tags_select_items(project: pytest.Pytester, merge: Path, expression: str, count: int) -> None:
    done = project.runpytest_subprocess("--collect-only", "-q", "-m", expression, "scenarios/")
    assert sum("::" in line for line in done.outlines) == count


@pytest.mark.nightly
def test_keywords_select_items(project: pytest.Pytester, merge: Path) -> None:
    project.runpytest_subprocess("-k", "merge and 9]", "scenarios/").assert_outcomes(passed=1, deselected=1)
