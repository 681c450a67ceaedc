"""A call before and after one part of its inputs changed, and oracle `insensitive`: an output whose
expected value moves must move.

A kernel that never reads the cache, or half of it, can stay within a loose tolerance: attention
over many keys is close to a mean. Such kernels passed a contest whose check allows 0.1
(gpu-mode/reference-kernels, amd_202602/mixed-mla). Within the bounds of `reference` they fail, and
this oracle says why: it names the input that has no influence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.core.cause_codes import Code
from harness.core.finding_words import place
from harness.core.findings import Finding
from harness.core.oracles import OracleSpec
from harness.evidence.records import Evidence, Judgement, Run

if TYPE_CHECKING:
    import torch

MOVED = 0.05
"""A row has moved if it changes by this share of its length: far more than rounding does."""


@dataclass(slots=True)
class Influence:
    """An output before and after a change of the inputs, each with its float64 reference.

    `changed` says what changed, such as "q[2, 0, 5]". All tensors are [rows, …]; `live` is [rows]
    bool. `describe` is the word for a row.
    """

    changed: str
    name: str
    before: torch.Tensor
    after: torch.Tensor
    expected_before: torch.Tensor
    expected_after: torch.Tensor
    live: torch.Tensor
    describe: str = "row"


def insensitive(evidence: Evidence) -> Judgement:
    """Look for rows whose expected value moved, and whose bits did not."""
    return Judgement.of(_of_runs(evidence))


def _of_runs(evidence: Evidence) -> Iterator[tuple[int, Iterable[Finding]]]:
    for run in evidence.runs:
        for one in run.all(Influence):
            stuck = stuck_rows(one)
            yield len(_moved(one)), [_finding(run, one, stuck)] if stuck else []


def stuck_rows(one: Influence) -> list[int]:
    """The rows whose expected value moved, and whose bits did not.

    A row with a NaN has none: a NaN hides what a kernel reads, and `finite` judges it.
    """
    return [
        row
        for row in _moved(one)
        if _same_bits(one.before[row], one.after[row]) and bool(one.before[row].isfinite().all())
    ]


def words_of(one: Influence, stuck: list[int]) -> str:
    """`out does not depend on q[2, 0, 5]: request 2 keeps its bits, …`."""
    return (
        f"{one.name} does not depend on {one.changed}: {place(one.describe, stuck)} keeps its bits,"
        " and the expected value moves"
    )


def _moved(one: Influence) -> list[int]:
    import torch

    before = one.expected_before.reshape(len(one.live), -1).double()
    after = one.expected_after.reshape(len(one.live), -1).double()
    distance = (after - before).norm(dim=1)
    length = torch.maximum(before.norm(dim=1), after.norm(dim=1))
    found: list[int] = (one.live & (distance > MOVED * length)).nonzero().flatten().tolist()
    return found


def _same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    import torch
    from torch_poison.patterns import bits_view

    return torch.equal(bits_view(first), bits_view(second))


def _finding(run: Run, one: Influence, stuck: list[int]) -> Finding:
    return Finding(
        oracle="insensitive",
        tensor=one.name,
        where=place(one.describe, stuck),
        cause=Code.CHEATS,
        message=f"{words_of(one, stuck)} (pattern {run.pattern})",
    )


ORACLES = (
    OracleSpec(
        "insensitive",
        "an output changes when one key, page, table entry or query changes what is expected",
        insensitive,
        needs="influence",
        rank=155,
    ),
)
