"""Oracle `zeroed`: a block that the scheduler wants zeroed holds zeros when a step first reads it.

This contract between two parts of an engine is judged by the bytes, even if no answer suffers.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.core.records import Finding
from harness.judge.run_records import Evidence, Judgement, ZeroedBlock


def judge(evidence: Evidence) -> Judgement:
    """Look at every listed block of every step of every run."""
    return Judgement.of(
        (zeroed.num_bytes, _findings(zeroed, run.pattern)) for run in evidence.runs for zeroed in run.zeroed
    )


def _findings(zeroed: ZeroedBlock, pattern: str) -> Iterator[Finding]:
    if zeroed.num_dirty:
        yield Finding(
            oracle="zeroed",
            site="kv.new",
            tensor="new blocks",
            where=f"block {zeroed.block}",
            message="a block that the scheduler wants zeroed holds old data: "
            f"block {zeroed.block} in step {zeroed.step}, {zeroed.num_dirty} of {zeroed.num_bytes} bytes "
            f"(pattern {pattern})",
        )
