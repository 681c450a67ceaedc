"""The decisions of a request in one run, with their margins: experts, tokens of sparse layers, and
generated tokens.

A decision is no number. Two right runs that round differently may decide a near tie otherwise, and
all later logits differ. So two runs are compared up to their first different decision. The margin
tells whether rounding explains it. The float64 reference measures it on the path of each run: the
scores of the code under test would excuse its own bugs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first decision that differs between two runs: its name, and the first row of logits that
    may differ for it.

    `shortfall` is how far the choice of a run scores below the best choice, at most; rounding
    explains `allowed`. `num_compared` counts the decisions up to this one.
    """

    what: str
    row: int
    shortfall: float
    allowed: float
    num_compared: int

    @property
    def is_beyond_rounding(self) -> bool:
        """Whether rounding does not explain it. A shortfall of NaN explains nothing."""
        return not self.shortfall <= self.allowed

    def __str__(self) -> str:
        limit = f"{self.allowed:.3g} is within rounding"
        return f"{self.what}: {self.shortfall:.3g} below the best score, {limit}"


@dataclass(slots=True)
class Decisions:
    """The decisions of one request.

    `layers` are the names of the deciding layers; `choices[i]` [T, k] are the sorted choices of
    layer i at each position, and `shortfalls[i]` [T] how far the least one scores below the best
    one left out. `tokens` were generated after `num_prompt_tokens`, and score `token_shortfalls`
    [G] below the best logit. Rounding explains `margin` of a layer and `token_margins` [G] of a
    token.
    """

    request: int
    num_prompt_tokens: int
    tokens: list[int]
    layers: list[str]
    choices: list[Tensor]
    shortfalls: list[Tensor]
    margin: float
    token_shortfalls: Tensor
    token_margins: Tensor

    def divergence(self, other: Decisions) -> Divergence | None:
        """The first decision in which the run of `other`, with the same prompt, differs."""
        candidates: list[tuple[int, int]] = []
        for index, (ours, theirs) in enumerate(zip(self.choices, other.choices, strict=True)):
            both = min(len(ours), len(theirs))
            unlike = (ours[:both] != theirs[:both]).any(dim=1).nonzero()
            candidates += [(int(unlike[0]), index)] if len(unlike) else []
        for row, (our, their) in enumerate(zip(self.tokens, other.tokens, strict=True)):
            if our != their:
                # A token is decided after all layers of its position.
                candidates.append((self.num_prompt_tokens - 1 + row, len(self.layers)))
                break
        return self._named(other, *min(candidates)) if candidates else None

    def _named(self, other: Decisions, position: int, index: int) -> Divergence:
        num_compared = position * (len(self.layers) + 1) + index + 1
        # A decision within the prompt reaches all rows of logits.
        row = max(0, position + 1 - self.num_prompt_tokens)
        if index == len(self.layers):
            shortfall = float(
                torch.maximum(self.token_shortfalls[row], other.token_shortfalls[row])
            )
            # Rounding must explain the worse of the two choices within the narrower of the two
            # margins.
            allowed = float(torch.minimum(self.token_margins[row], other.token_margins[row]))
            what = f"generated token {row} is {other.tokens[row]}, not {self.tokens[row]}"
            return Divergence(what, row + 1, shortfall, allowed, num_compared)
        shortfall = float(
            torch.maximum(self.shortfalls[index][position], other.shortfalls[index][position])
        )
        ours, theirs = (set(run.choices[index][position].tolist()) for run in (self, other))
        what = (
            f"{self.layers[index]} at position {position} takes {_few(theirs - ours)}, not"
            f" {_few(ours - theirs)}"
        )
        return Divergence(what, row, shortfall, self.margin, num_compared)


def rows_before_divergence(
    ours: tuple[Decisions, ...], theirs: tuple[Decisions, ...]
) -> tuple[Tensor, list[Divergence]]:
    """The rows [n] bool of all requests that no differing decision reaches, and the divergences."""
    rows: list[Tensor] = []
    found: list[Divergence] = []
    for one, other in zip(ours, theirs, strict=True):
        divergence = one.divergence(other)
        found += [divergence] if divergence else []
        rows.append(
            torch.arange(len(one.tokens)) < (divergence.row if divergence else len(one.tokens))
        )
    return torch.cat(rows), found


def shortfall(scores: Tensor, taken: Tensor) -> Tensor:
    """How far the least of the scores [..., n] `taken` [..., n] bool is below the best one left
    out, [...].
    """
    left_out = scores.masked_fill(taken, -torch.inf).amax(-1)
    return left_out - scores.masked_fill(~taken, torch.inf).amin(-1)


def _few(choices: set[int]) -> str:
    return ", ".join(map(str, sorted(choices)[:4])) or "nothing else"
