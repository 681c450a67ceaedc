"""Oracle `flush`: once all caches are flushed, the same questions get the answers that they got at first.

An engine that answers worse from round to round and recovers with a flush holds something stale in its caches; one that
does not recover has it elsewhere, or its flush leaves something behind.
"""

from __future__ import annotations

from harness.judge.oracles.pairs import judge_pairs
from harness.judge.run_records import Evidence, Judgement


def judge(evidence: Evidence) -> Judgement:
    """Compare the answers after the flush with those of the first epoch."""
    return judge_pairs(evidence, "flush", "is answered otherwise after a flush of the caches than at first")
