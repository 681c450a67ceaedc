"""The experts that a router chose, and oracle `distinct_experts`: the experts of a token are
distinct and exist.

Expert kernels sort tokens by expert and rely on both for every row, padding included. A row of -1
is masked by the engine and not judged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.core.cause_codes import Code
from harness.core.finding_words import place
from harness.core.findings import Finding
from harness.core.oracles import OracleSpec
from harness.evidence.records import Evidence, Judgement

if TYPE_CHECKING:
    import torch


@dataclass(slots=True)
class ChosenExperts:
    """Expert ids [T, k] of all routed tokens, padding included. A row of -1 was masked."""

    name: str
    ids: torch.Tensor
    num_experts: int


def distinct_experts(evidence: Evidence) -> Judgement:
    """Look at the ids of every routed row of every run."""
    return Judgement.of(
        (chosen.ids.numel(), _wrong_experts(chosen, pattern))
        for chosen, pattern in evidence.all(ChosenExperts)
    )


def _wrong_experts(chosen: ChosenExperts, pattern: str) -> Iterator[Finding]:
    rising = chosen.ids.sort(dim=1).values
    routed = ~(rising == -1).all(dim=1)
    repeated = (rising[:, 1:] == rising[:, :-1]).any(dim=1) & routed
    unknown = ((rising < 0) | (rising >= chosen.num_experts)).any(dim=1) & routed
    kinds = (
        (Code.REPEATED_EXPERT, repeated, "one expert more than once"),
        (Code.UNKNOWN_EXPERT, unknown, "an expert that does not exist"),
    )
    for cause, wrong, what in kinds:
        rows = wrong.nonzero().flatten().tolist()
        if rows:
            yield Finding(
                oracle="distinct_experts",
                tensor=chosen.name,
                where=place("routed token", tuple(rows), (rows[0], 0)),
                cause=cause,
                message=(
                    f"{len(rows)} of {len(rising)} tokens are given {what}: the first has"
                    f" {chosen.ids[rows[0]].tolist()} of {chosen.num_experts} experts (pattern"
                    f" {pattern})"
                ),
            )


ORACLES = (
    OracleSpec(
        "distinct_experts",
        "the experts of each token, padding included, are distinct and exist",
        distinct_experts,
        needs="experts",
        rank=170,
        by_default=True,
    ),
)
