"""No result is lost or stored twice, whatever kills a run.

The long form runs at night; see `kill_runs.py`.
"""

from __future__ import annotations

import shutil

import pytest

from trust.disturbances.kill_runs import KINDS, trials


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_was_disturbed_has_every_result_once(kind: str) -> None:
    if kind == "clock" and shutil.which("gcc") is None:
        pytest.skip("no compiler for the library that moves the clock")
    found = trials(
        [kind] * (6 if kind in ("parent", "worker", "both") else 1), seed=len(kind), longest=8.0
    )
    assert [(trial.lost, trial.doubled) for trial in found] == [(0, 0)] * len(found)
    assert all(trial.in_history == trial.planned > 20 for trial in found)


@pytest.mark.nightly
def test_a_killed_parent_loses_nothing() -> None:
    (found,) = trials(["parent"], seed=1, longest=5.0)
    assert found.is_good and found.planned > 20
