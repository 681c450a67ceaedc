from __future__ import annotations

import pytest

from harness.core.errors import CaptureError, IllegalAddress, KernelError
from harness.judge.oracles.crash import judge
from harness.judge.run_records import Run


def test_runs_that_came_to_their_end_are_silent_and_counted(evidence):
    judgement = judge(evidence(Run("nan"), Run("zeros")))
    assert judgement.findings == []
    assert judgement.looked_at == 2


@pytest.mark.parametrize("error", [IllegalAddress("x"), KernelError("x"), CaptureError("x")])
def test_a_run_that_an_exception_ended_fires(evidence, error):
    assert len(judge(evidence(Run("nan", error=error))).findings) == 1


def test_the_message_is_one_line(evidence):
    error = KernelError("mla_decode/mine raised RuntimeError: first\nsecond\nthird")
    message = judge(evidence(Run("nan", error=error))).findings[0].message
    assert message == "mla_decode/mine raised RuntimeError: first … (pattern nan)"


def test_a_finding_names_the_line_that_raised(evidence):
    error = KernelError("mla_decode/mine raised RuntimeError: x")
    error.at = "mine.py:3 in mine: raise RuntimeError()"
    assert judge(evidence(Run("nan", error=error))).findings[0].at == error.at


@pytest.mark.parametrize(
    ("what", "site"),
    [
        ("mla_decode: block_table: index -1 at [2] is outside [0, 9)", "block_table.pad"),
        ("block_table column: index 9 at [0] is outside [0, 9)", "sched_meta"),
        ("metadata.work request: index 9 at [0] is outside [0, 9)", "sched_meta"),
        ("expert ids: index 900 at [2] is outside [0, 9)", "router.ids"),
        ("something else: index 900 at [2] is outside [0, 9)", None),
    ],
)
def test_an_illegal_index_names_the_memory_it_came_from(evidence, what, site):
    assert judge(evidence(Run("nan", error=IllegalAddress(what)))).findings[0].site == site
