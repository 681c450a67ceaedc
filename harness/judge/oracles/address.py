"""Oracle `address`: the tensor that a graph captured is the one that the engine updates before a replay."""

from __future__ import annotations

from harness.core.finding_words import merged
from harness.core.records import Finding
from harness.judge.run_records import Evidence, Judgement


def judge(evidence: Evidence) -> Judgement:
    """Compare the two addresses of every binding of every step, in every run."""
    judgement = Judgement()
    findings: list[Finding] = []
    for run in evidence.runs:
        for binding in run.bindings:
            judgement.looked_at += 1
            if binding.captured_address != binding.current_address:
                findings.append(
                    Finding(
                        oracle="address",
                        site=binding.site,
                        tensor=binding.name,
                        where=f"step {binding.step}",
                        bits=f"captured 0x{binding.captured_address:x}, updated 0x{binding.current_address:x}",
                        message=f"the graph reads {binding.name} where it was captured, but the engine updates "
                        f"another tensor (pattern {run.pattern})",
                    )
                )
    judgement.findings = merged(findings)
    return judgement
