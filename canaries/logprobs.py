"""Oracle of log probabilities: each token of an engine beside the truth of a random checkpoint.

It judges what `mla-harness canary logprobs` is given, and no case of a scenario.

How far rounding moves a token is measured on the reference itself, not assumed (see
docs/tolerances.md): samples with noise of one rounding at each module, with the truth's decisions
(`steady`) and with their own (`free`).

A token is *fragile* if a decision can move it: its free samples spread more than `FRAGILE` times as
far as the steady ones. Each token is judged by the larger of its two spreads, steady and fragile
ones apart, and both are counted. The median distance over the spread must not pass `RATIO` in any
part of the sequences. Single tokens may be far where a decision falls otherwise that fell alike in
all samples; so many as the samples show of each other are allowed.

If the engine's decisions were recorded, truth and samples have them too (`replayed`). Then no token
is fragile, and none may be far.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from harness.core.cause_codes import Code
from harness.core.finding_words import place
from harness.core.findings import Finding
from harness.evidence.records import Judgement

FRAGILE = 4.0
RATIO = 1.5
"""The largest median of distance over spread.

For an engine that rounds as often as the samples it is 0.61, as the spread is the larger of two
estimates by four samples each. Squares of roundings add, so 1.5 allows six times as many.
"""
FAR, FAR_REPLAYED = 12.0, 8.0
"""A token is far if its distance is so many times the largest of its samples, or of their median
where that is more.
"""
PARTS = (0, 128, 512, 1 << 30)
"""Where the parts of a sequence begin that are judged by themselves."""
LEAST = 16
"""Tokens of a part that is judged."""


@dataclass(slots=True)
class TokenLogprobs:
    """What an engine said of tokens beside the truth:

    `found` and `truth` [n] float64, `positions` [n] in a sequence.

    `steady` and `free` [S, n]: distances of samples with rounding noise from the truth, with its
    decisions and without. `free` is None if the decisions are the engine's. `requests` [n] has the
    number of each token's sequence.
    """

    name: str
    found: torch.Tensor
    truth: torch.Tensor
    steady: torch.Tensor
    free: torch.Tensor | None
    positions: torch.Tensor
    requests: torch.Tensor


def judged(tokens: TokenLogprobs) -> Judgement:
    """The judgement of one set of tokens, of an engine that nothing poisons."""
    notes: list[str] = []
    judgement = Judgement.of(_looks(tokens, "none", notes))
    judgement.notes = notes
    return judgement


def _looks(
    tokens: TokenLogprobs, pattern: str, notes: list[str]
) -> Iterator[tuple[int, list[Finding]]]:
    distance = (tokens.found - tokens.truth).abs()
    steady = spread(tokens.steady)
    free = steady if tokens.free is None else spread(tokens.free)
    is_fragile, allowed = free > FRAGILE * steady, torch.maximum(steady, free)
    if tokens.free is not None:
        notes.append(
            f"{tokens.name}: {int(is_fragile.sum())} of {len(distance)} tokens depend on decisions"
            " near a tie"
        )
    bad = ~tokens.found.isfinite()
    if bool(bad.any()):
        yield (
            len(distance),
            [_finding(tokens, bad, Code.NAN, f"{int(bad.sum())} are not finite", pattern)],
        )
        return
    for first, last in pairwise(PARTS):
        inside = (tokens.positions >= first) & (tokens.positions < last)
        for kind, rows in (("steady", inside & ~is_fragile), ("fragile", inside & is_fragile)):
            if int(rows.sum()) < LEAST:
                continue
            ratio = float((distance[rows] / allowed[rows]).median())
            words = (
                f"the median distance of {kind} tokens from {first} on is {ratio:.2f} spreads,"
                f" {RATIO} allowed"
            )
            is_wrong = ratio > RATIO
            found = (
                [_finding(tokens, rows, Code.DIFFERS, words, pattern, ratio / RATIO)]
                if is_wrong
                else []
            )
            yield int(rows.sum()), found
    if tokens.free is None:
        far, most = far_tokens(distance, tokens.steady, FAR_REPLAYED), 0
    else:
        far, most = far_tokens(distance, tokens.free), allowed_far(tokens.free)
    if int(far.sum()) > most:
        words = f"{int(far.sum())} tokens are far, {most} allowed"
        yield 0, [_finding(tokens, far, Code.DIFFERS, words, pattern)]


def spread(samples: Tensor) -> Tensor:
    """The root mean square [n] of samples [S, n], at least a quarter of its median over the
    tokens.
    """
    found = samples.square().mean(0).sqrt()
    return found.clamp(min=float(found.median()) / 4)


def far_tokens(distance: Tensor, samples: Tensor, times: float = FAR) -> Tensor:
    """The tokens [n] bool whose distance [n] is so many `times` the largest of their samples [S,
    n].
    """
    largest = samples.abs().amax(0)
    return distance > times * largest.clamp(min=float(largest.median()))


def allowed_far(samples: Tensor) -> int:
    """How many far tokens an engine may have: twice the most that a sample of [S, n] has against
    the others, and 3.
    """
    others = [torch.cat((samples[:j], samples[j + 1 :])) for j in range(len(samples))]
    return 3 + 2 * max(
        int(far_tokens(samples[j].abs(), rest).sum()) for j, rest in enumerate(others)
    )


def _finding(
    tokens: TokenLogprobs,
    rows: Tensor,
    cause: str,
    words: str,
    pattern: str,
    excess: float | None = None,
) -> Finding:
    distance = torch.where(rows, (tokens.found - tokens.truth).abs().nan_to_num(torch.inf), -1.0)
    worst = int((distance / spread(tokens.steady)).argmax())
    named = f"furthest request {int(tokens.requests[worst])}, token {int(tokens.positions[worst])}"
    return Finding(
        oracle="logprobs",
        tensor=tokens.name,
        where=place("token", tuple(rows.nonzero().flatten().tolist())),
        cause=cause,
        excess=excess,
        message=f"log probabilities of {tokens.name}: {words}; {named} (pattern {pattern})",
    )
