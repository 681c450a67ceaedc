"""Oracle `tokens`: what an engine took from each row of logits is the largest one, which is the
reference's too.

Where the reference's logits of two tokens lie within the bound of each other, either may be taken.
"""

from __future__ import annotations

from harness.core.cause_codes import Code
from harness.core.finding_words import place
from harness.core.findings import Finding
from harness.core.oracles import OracleSpec
from harness.evidence.observed import Observed
from harness.evidence.records import Evidence, Judgement


def tokens(evidence: Evidence) -> Judgement:
    """Look at the token of every row of logits that says which token it gave, in every run."""
    return Judgement.of(
        _wrong_tokens(observed, pattern)
        for observed, pattern in evidence.all(Observed)
        if observed.tokens is not None
    )


def _wrong_tokens(observed: Observed, pattern: str) -> tuple[int, list[Finding]]:
    """The rows with a token that is not the largest logit, or that the reference puts beyond the
    bound below it.
    """
    import torch

    from harness.evidence.thresholds import bound

    assert observed.tokens is not None and observed.expected is not None
    taken = observed.tokens
    want = observed.expected
    limits = bound(observed.bound)
    exists = (taken >= 0) & (taken < want.shape[1])
    column = torch.where(exists, taken, 0)[:, None]
    # torch's argmax takes NaN for the largest, so a row of NaN gives one of these.
    own = observed.tensor.nan_to_num(nan=torch.inf)
    largest = want.amax(dim=1)
    error = (
        limits.floor * want.square().mean(dim=1).sqrt()
        + limits.ulps * torch.finfo(limits.dtype).eps * largest.abs()
    )
    is_own = own.gather(1, column).squeeze(1) == own.amax(dim=1)
    # Twice, as both logits may be off.
    is_right = exists & is_own & (want.gather(1, column).squeeze(1) >= largest - 2 * error)
    rows = (~is_right).nonzero().flatten().tolist()
    if not rows:
        return len(taken), []
    first = rows[0]
    best = int(own[first].argmax()), int(want[first].argmax())
    finding = Finding(
        oracle="tokens",
        tensor=observed.name,
        where=place(observed.describe, rows),
        cause=Code.WRONG_TOKEN,
        message=(
            f"{len(rows)} of {len(taken)} tokens are not the largest logit: the first is"
            f" {int(taken[first])}, where the engine's largest is of {best[0]} and the reference's"
            f" of {best[1]} (pattern {pattern})"
        ),
    )
    return len(taken), [finding]


ORACLES = (
    OracleSpec(
        "tokens",
        "each token is the largest logit of its row, and of the reference's",
        tokens,
        needs="requests",
        rank=320,
        by_default=True,
    ),
)
