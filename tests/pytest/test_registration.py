"""The plug-in is found however it is asked for, and never twice."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path

import pytest


@pytest.mark.parametrize("asked", ["conftest", "option", "both"])
def test_plugin_is_registered_once_however_it_is_asked_for(project: pytest.Pytester, merge: Path, asked: str) -> None:
    project.makeini("[pytest]\nfilterwarnings = error\n")
    if asked in ("conftest", "both"):
        project.makeconftest('pytest_plugins = ["harness.pytest.plugin"]')
    options = ["-p", "harness.pytest.plugin"] if asked in ("option", "both") else []
    done = project.runpytest_subprocess(*options, "--collect-only", "-q", "scenarios/")
    assert done.ret == 0
    done.stdout.fnmatch_lines(["2 tests collected*"])


def test_entry_point_is_named_like_the_module() -> None:
    found = [point for point in entry_points(group="pytest11") if point.value == "harness.pytest.plugin"]
    if not found:
        pytest.skip("the harness is not installed here, so it has no entry points")
    assert {point.name for point in found} == {"harness.pytest.plugin"}
