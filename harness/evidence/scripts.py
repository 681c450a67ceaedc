"""Scripts of requests to a serving engine, and oracle `sequences`: each answer has the tokens of
the same request asked alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.core.errors import Refused
from harness.core.oracles import OracleSpec
from harness.evidence.records import Evidence, Judgement

if TYPE_CHECKING:
    from harness.core.records import CaseResult


@dataclass(slots=True)
class PlayedScript:
    """What a script of requests found, if the target serves over HTTP."""

    result: CaseResult

    @classmethod
    def of_reply(cls, reply: dict[str, Any]) -> PlayedScript:
        """What `play_script` returned in another process. Raises Refused if it showed nothing."""
        from harness.core.records import CaseResult, Verdict

        result = CaseResult.model_validate(reply)
        if result.verdict is Verdict.SKIP:
            raise Refused(result.reason)
        return cls(result)


def sequences(evidence: Evidence) -> Judgement:
    """The findings of the scripts of requests. `looked_at` counts compared tokens."""
    results = [played.result for played, _ in evidence.all(PlayedScript)]
    found = Judgement.of((result.looked_at["sequences"], result.findings) for result in results)
    found.notes = [result.reason for result in results if not result.findings]
    return found


ORACLES = (
    OracleSpec(
        "sequences",
        "each answer of a script has the tokens of the same request asked alone, with no page from"
        " a cache",
        sequences,
        needs="script",
        rank=480,
    ),
)
