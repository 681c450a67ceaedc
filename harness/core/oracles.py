"""The oracles that the harness has itself; engines add their own. No torch here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from harness.core.registry import attribute_at

Need = Literal[
    "", "floats", "requests", "graph", "batches", "patterns", "answers", "warm", "flush", "mixed", "experts", "repeats",
    "moves", "script", "module",
]  # fmt: skip

TELLING_ORDER = (
    "crash", "address", "conserved", "policy", "replay", "padding", "zeroed", "distinct_experts", "landed", "ordered",
    "sentinel", "finite", "reference", "tokens", "acceptance", "cold_warm", "flush", "repeats", "non_interference",
    "accuracy", "streams", "answers", "sequences",
)  # fmt: skip
"""Oracles in the order in which their findings explain a failure: first a mechanism (a crash, a stale address or plan,
uninitialised memory), then a symptom."""


class Found(Protocol):
    """What an oracle found."""

    @property
    def oracle(self) -> str: ...


FoundT = TypeVar("FoundT", bound=Found)


def most_telling_first(findings: Iterable[FoundT]) -> list[FoundT]:
    """Findings in TELLING_ORDER. The order within one oracle is kept, and an unknown oracle comes last."""
    rank = {name: place for place, name in enumerate(TELLING_ORDER)}
    return sorted(findings, key=lambda finding: rank.get(finding.oracle, len(rank)))


@dataclass(frozen=True, slots=True)
class OracleSpec:
    """One oracle; `impl` is the "module:function" that takes an `Evidence` and returns a `Judgement`.

    `needs` is what a case must have: `floats` in its outputs, `requests` that an engine serves, `graph` a captured
    graph, `batches` an engine's batches in it, `patterns` two poison patterns or more, `answers` a task's questions,
    `warm` prompts that come again to an engine with prefix caching, `flush` a flush, `mixed` layers of different types
    that share one pool, `experts` tokens that are routed to experts, `repeats` several launches on equal inputs,
    `moves` a cache that is moved, `script` a script of requests, `module` a drafter that knows the answers by heart.
    """

    name: str
    summary: str
    impl: str
    needs: Need = ""

    def judge(self, evidence: Any) -> Any:
        """The `Judgement` of an `Evidence`. Their types belong to a higher floor."""
        return attribute_at(self.impl)(evidence)


def _oracle(place: str, summary: str, needs: Need = "") -> OracleSpec:
    """An oracle at `module:name` of `harness.judge.oracles`; a module alone is its name, with the function `judge`."""
    module, _, name = place.partition(":")
    return OracleSpec(name or module, summary, f"harness.judge.oracles.{module}:{name or 'judge'}", needs)


ORACLES: tuple[OracleSpec, ...] = (
    _oracle("values:finite", "live rows hold no NaN and no Inf where the reference is finite", "floats"),
    _oracle("values:sentinel", "no sentinel is found verbatim in live rows, and guarded memory is untouched"),
    _oracle("agreement:reference", "live rows agree with the float64 reference"),
    _oracle("agreement:tokens", "each token is the largest logit of its row, and of the reference's", "requests"),
    _oracle("contracts:conserved", "no request and no page is lost or counted twice", "requests"),
    _oracle("contracts:policy", "requests, budget and graphs are chosen by this engine's own policy", "requests"),
    _oracle("contracts:acceptance", "each draft of a drafter that knows the answers by heart is accepted", "module"),
    _oracle("bitwise:non_interference", "live rows are bitwise equal under two different poisons", "patterns"),
    _oracle(
        "bitwise:replay",
        "a graph replay equals the same step run eagerly, and its answer changes when its inputs change",
        "graph",
    ),
    _oracle(
        "agreement:padding",
        "live rows of a captured batch are bitwise equal for any number of padded rows",
        "batches",
    ),
    _oracle("contracts:address", "the tensor that a graph captured is the one that the engine updates", "batches"),
    _oracle("agreement:cold_warm", "a prompt is answered alike whether its prefix was cached or not", "warm"),
    _oracle("agreement:flush", "after a flush of all caches the answers are as they were at first", "flush"),
    _oracle("agreement:repeats", "each launch on equal inputs gives the same bits", "repeats"),
    _oracle(
        "contracts:zeroed", "each block that the scheduler says to zero holds zeros before its first read", "mixed"
    ),
    _oracle(
        "contracts:distinct_experts", "the experts of each token, padding included, are distinct and exist", "experts"
    ),
    _oracle("moves:landed", "after a move every byte is the one that its token needs, and no other changed", "moves"),
    _oracle("moves:ordered", "of two accesses to the same bytes, one a write, an event orders which is first", "moves"),
    _oracle(
        "accuracy",
        "in every epoch the canary answers as many questions right as its baseline, and the same ones",
        "answers",
    ),
    _oracle(
        "accuracy:answers",
        "in every epoch vLLM answers as many questions right as the canary is known to, with no invalid token",
        "answers",
    ),
    _oracle("accuracy:streams", "vLLM generates the same text with graphs and without", "graph"),
    _oracle("crash", "the worker survives: no illegal address, no signal, no exception, no hang"),
    _oracle(
        "accuracy:sequences",
        "each answer of a script has the tokens of the same request asked alone, with no page from a cache",
        "script",
    ),
)
