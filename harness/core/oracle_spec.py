"""What an oracle is: a name, one sentence, and a judge."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from harness.core.records import Finding
    from harness.judge.run_records import Evidence, Judgement


TELLING_ORDER = (
    "crash", "address", "replay", "padding", "zeroed", "distinct_experts", "sentinel", "finite", "reference",
    "cold_warm", "flush", "non_interference", "accuracy", "streams", "answers",
)  # fmt: skip
"""Oracles by how much a finding of theirs tells: first the mechanism (a crash, a stale address or plan, memory that
nobody wrote), then a symptom."""


def most_telling_first(findings: Iterable[Finding]) -> list[Finding]:
    """Findings in TELLING_ORDER; those of one oracle keep their order, and an unknown oracle comes last."""
    rank = {name: place for place, name in enumerate(TELLING_ORDER)}
    return sorted(findings, key=lambda finding: rank.get(finding.oracle, len(rank)))


@dataclass(frozen=True, slots=True)
class OracleSpec:
    """One oracle; `impl` is the "module:function" that takes Evidence and returns a Judgement.

    `needs` says what a case must have for it: `graph` a captured graph, `patterns` two poison patterns or more,
    `answers` a task's questions, `warm` prompts that come again to an engine with prefix caching, `flush` a flush,
    `mixed` layers of different types that share one pool, `experts` tokens that are routed to experts.
    """

    name: str
    summary: str
    impl: str
    needs: Literal["", "graph", "patterns", "answers", "warm", "flush", "mixed", "experts"] = ""

    def judge(self, evidence: Evidence) -> Judgement:
        """Judge the runs of a case."""
        module, _, attribute = self.impl.partition(":")
        judgement: Judgement = getattr(importlib.import_module(module), attribute)(evidence)
        return judgement
