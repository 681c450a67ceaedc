"""Numbers that must be kept, each with the oracle that judges it.

`conserved`: each request gets its tokens once, and each block is free or owned, in every step and
at the end. Owners, shared pages and places are counted as well. Any engine promises this.

`policy`: who runs next, how much of the budget is used, which graph replays, which page is found in
the cache. Another right engine may choose otherwise, so a scenario that means this engine's policy
names the oracle.

`acceptance`: each draft of a drafter that knows the answers by heart is the token that the target
chooses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from harness.core.cause_codes import Code
from harness.core.findings import Finding
from harness.core.oracles import OracleSpec
from harness.evidence.records import Evidence, Judgement


@dataclass(frozen=True, slots=True)
class Count:
    """A number that must be kept: the blocks of a pool, the tokens of a request.

    `oracle` judges it.
    """

    name: str
    expected: int | str
    found: int | str
    where: str = ""
    oracle: str = "conserved"
    """`policy` for a choice that another right engine may make otherwise."""


def _kept(evidence: Evidence, oracle: str) -> Judgement:
    return Judgement.of(
        (1, _miscounted(count, pattern))
        for count, pattern in evidence.all(Count)
        if count.oracle == oracle
    )


conserved, policy, acceptance = (
    partial(_kept, oracle=name) for name in ("conserved", "policy", "acceptance")
)

_POLICY = {
    "conserved": "",
    "policy": " by the policy that the scenario declares; another engine may choose so",
    "acceptance": ": the drafter knows the answers by heart, so a refused draft is an error",
}


def _miscounted(count: Count, pattern: str) -> Iterator[Finding]:
    if count.found != count.expected:
        yield Finding(
            oracle=count.oracle,
            tensor=count.name,
            where=count.where,
            cause=Code.MISCOUNTED,
            message=(
                f"{count.name}: {count.found}, not {count.expected}{_POLICY[count.oracle]} (pattern"
                f" {pattern})"
            ),
        )


ORACLES = (
    OracleSpec(
        "conserved",
        "no request and no page is lost or counted twice",
        conserved,
        needs="requests",
        rank=120,
        by_default=True,
    ),
    OracleSpec(
        "policy",
        "requests, budget and graphs are chosen by this engine's own policy",
        policy,
        needs="requests",
        rank=130,
    ),
    OracleSpec(
        "acceptance",
        "each draft of a drafter that knows the answers by heart is accepted",
        acceptance,
        needs="module",
        rank=330,
    ),
)
