"""Oracle `distinct_experts`: the experts of a token are distinct and exist.

Expert kernels sort tokens by expert and rely on both for every row, padding included. A row of -1 is masked by the
engine and not judged.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from harness.core.finding_words import place
from harness.core.records import Finding
from harness.judge.run_records import ChosenExperts, Evidence, Judgement


def judge(evidence: Evidence) -> Judgement:
    """Look at the ids of every routed row of every run."""
    return Judgement.of(
        (chosen.ids.numel(), _findings(chosen, run.pattern)) for run in evidence.runs for chosen in run.chosen
    )


def _findings(chosen: ChosenExperts, pattern: str) -> Iterator[Finding]:
    rising = chosen.ids.sort(dim=1).values
    routed = ~(rising == -1).all(dim=1)
    repeated = (rising[:, 1:] == rising[:, :-1]).any(dim=1) & routed
    unknown = ((rising < 0) | (rising >= chosen.num_experts)).any(dim=1) & routed
    for wrong, what in ((repeated, "one expert more than once"), (unknown, "an expert that does not exist")):
        rows = torch.nonzero(wrong).flatten().tolist()
        if rows:
            yield Finding(
                oracle="distinct_experts",
                tensor=chosen.name,
                where=place("routed token", tuple(rows), (rows[0], 0)),
                message=f"{len(rows)} of {len(rising)} tokens are given {what}: the first has "
                f"{chosen.ids[rows[0]].tolist()} of {chosen.num_experts} experts (pattern {pattern})",
            )
