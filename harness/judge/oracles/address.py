"""Oracle `address`: a graph reads the same tensor that the engine updates before a replay."""

from __future__ import annotations

from collections.abc import Iterator

from harness.core.records import Finding
from harness.judge.run_records import Binding, Evidence, Judgement


def judge(evidence: Evidence) -> Judgement:
    """Compare the two addresses of every binding of every step, in every run."""
    return Judgement.of((1, _findings(binding, run.pattern)) for run in evidence.runs for binding in run.bindings)


def _findings(binding: Binding, pattern: str) -> Iterator[Finding]:
    if binding.captured_address != binding.current_address:
        yield Finding(
            oracle="address",
            site=binding.site,
            tensor=binding.name,
            where=f"step {binding.step}",
            bits=f"captured 0x{binding.captured_address:x}, updated 0x{binding.current_address:x}",
            message=f"the graph reads {binding.name} where it was captured, but the engine updates another tensor "
            f"(pattern {pattern})",
        )
