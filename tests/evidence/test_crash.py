from __future__ import annotations

import pytest

from harness.core.errors import CaptureError, IllegalAddress, KernelError
from harness.evidence.crash import crash as judge
from harness.evidence.records import Run


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
    assert "first …" in message and "second" not in message and "\n" not in message


def test_a_finding_names_the_line_that_raised(evidence):
    at = "mine.py:3 in mine: raise RuntimeError()"
    error = KernelError(
        "mla_decode/mine raised RuntimeError: x",
        error="RuntimeError",
        kernel="mla_decode/mine",
        at=at,
    )
    finding = judge(evidence(Run("nan", error=error))).findings[0]
    assert (finding.cause, finding.error, finding.kernel, finding.at) == (
        "raised",
        "RuntimeError",
        error.kernel,
        at,
    )


@pytest.mark.parametrize(
    ("tensor", "site"),
    [
        ("block_table", "block_table.pad"),
        ("block_table column", "sched_meta"),
        ("metadata.work request", "sched_meta"),
        ("expert ids", "router.ids"),
        ("something else", None),
    ],
)
def test_an_illegal_index_names_the_memory_it_came_from(evidence, tensor, site):
    error = IllegalAddress("the words do not matter", tensor=tensor)
    assert judge(evidence(Run("nan", error=error))).findings[0].site == site
