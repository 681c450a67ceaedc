"""The oracles that the harness has itself; engines add their own. No torch here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from harness.core.files import rows_beside
from harness.core.registry import attribute_at

Need = Literal[
    "",
    "floats",
    "requests",
    "graph",
    "batches",
    "patterns",
    "answers",
    "warm",
    "flush",
    "mixed",
    "experts",
    "repeats",
    "moves",
    "script",
    "module",
]

TELLING_ORDER = (
    "crash",
    "process",
    "rejects",
    "address",
    "conserved",
    "policy",
    "replay",
    "padding",
    "zeroed",
    "distinct_experts",
    "landed",
    "ordered",
    "sentinel",
    "finite",
    "reference",
    "tokens",
    "acceptance",
    "cold_warm",
    "flush",
    "repeats",
    "non_interference",
    "accuracy",
    "streams",
    "answers",
    "sequences",
)
"""Oracles in the order in which their findings explain a failure: first a mechanism (a crash, a
stale address or plan, uninitialised memory), then a symptom.
"""


class Found(Protocol):
    """What an oracle found."""

    @property
    def oracle(self) -> str: ...


FoundT = TypeVar("FoundT", bound=Found)


def most_telling_first(findings: Iterable[FoundT]) -> list[FoundT]:
    """Findings in TELLING_ORDER.

    The order within one oracle is kept, and an unknown oracle comes last.
    """
    rank = {name: place for place, name in enumerate(TELLING_ORDER)}
    return sorted(findings, key=lambda finding: rank.get(finding.oracle, len(rank)))


@dataclass(frozen=True, slots=True)
class OracleSpec:
    """One oracle; `impl` is the "module:function" that takes an `Evidence` and returns a
    `Judgement`.

    `needs` is what a case must have: `floats` in its outputs, `requests` that an engine serves,
    `graph` a captured graph, `batches` an engine's batches in it, `patterns` two poison patterns or
    more, `answers` a task's questions, `warm` prompts that come again to an engine with prefix
    caching, `flush` a flush, `mixed` layers of different types that share one pool, `experts`
    tokens that are routed to experts, `repeats` several launches on equal inputs, `moves` a cache
    that is moved, `script` a script of requests, `module` a drafter that knows the answers by
    heart.
    """

    name: str
    summary: str
    impl: str
    needs: Need = ""

    def judge(self, evidence: Any) -> Any:
        """The `Judgement` of an `Evidence`. Their types belong to a higher floor."""
        return attribute_at(self.impl)(evidence)


ORACLES = tuple(
    OracleSpec(name, row["passes"], f"harness.judge.oracles.{row['impl']}", row.get("needs", ""))
    for name, row in rows_beside(__file__).items()
)
"""The entries of `oracles.yaml`, in its order."""
