"""Oracle `zeroed`: each block that the scheduler says to zero holds zeros when the step that first reads it begins.

A contract between two parts of an engine, so it is judged by the bytes, whether or not any answer suffers.
"""

from __future__ import annotations

from harness.core.finding_words import merged
from harness.core.records import Finding
from harness.judge.run_records import Evidence, Judgement


def judge(evidence: Evidence) -> Judgement:
    """Look at every listed block of every step of every run."""
    judgement = Judgement()
    findings: list[Finding] = []
    for run in evidence.runs:
        for zeroed in run.zeroed:
            judgement.looked_at += zeroed.num_bytes
            if zeroed.num_dirty:
                message = (
                    f"a block that the scheduler told to zero holds what was there before: block {zeroed.block} in "
                    f"step {zeroed.step}, {zeroed.num_dirty} of {zeroed.num_bytes} bytes (pattern {run.pattern})"
                )
                findings.append(
                    Finding(
                        oracle="zeroed", site="kv.new", tensor="new blocks", where=f"block {zeroed.block}",
                        message=message,
                    )
                )  # fmt: skip
    judgement.findings = merged(findings)
    return judgement
