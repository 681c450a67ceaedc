"""Oracle `cold_warm`: a prompt whose beginning was cached by somebody else is answered as it was without that.

What the cached part changes is how attention is computed (chunks of context, merged), never its result. A unit error in
a merge, or a page that was found before it was written, shows here although all memory may be valid.
"""

from __future__ import annotations

from harness.judge.oracles.pairs import judge_pairs
from harness.judge.run_records import Evidence, Judgement


def judge(evidence: Evidence) -> Judgement:
    """Compare the answers to each prompt that shared a prefix with those to the same prompt that did not."""
    return judge_pairs(evidence, "cold_warm", "is answered otherwise with a warm prefix cache than with a cold one")
