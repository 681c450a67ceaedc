"""Speculative decoding: where drafts come from, and how the target's own tokens decide on them."""

from __future__ import annotations

from torch import Tensor

from harness.core.seams import seam
from harness.engine.schedule.sequence import Sequence

MATCH = 2
"""How many last tokens must have been seen before for what followed them to be a draft."""
FILLER_DRAFT = 0
"""The draft where nothing was seen before: every decoding request of a batch verifies equally many."""


@seam("verify.nan-row-to-vocab-size")
def greedy_tokens(logits: Tensor) -> Tensor:
    """The token [rows] int64 with the largest logit of each row of [rows, vocab], rows of padding included.

    A row of NaN gives some token of the vocabulary too, never one past its end: it may be a row of padding, which
    nobody reports but the drafter's embedding looks up (PR 53029).
    """
    return logits.argmax(dim=-1)


def confirmed(drafts: list[int], tokens: list[int]) -> list[int]:
    """The tokens that a verifying step gives: the target's, up to the first that its draft was wrong about.

    `tokens` [1 + len(drafts)] are the target's choices after the last token and after each draft.
    """
    given = tokens[:1]
    for draft, token in zip(drafts, tokens[1:], strict=True):
        if draft != given[-1]:
            break
        given.append(token)
    return given


class SuffixDrafts:
    """Drafts looked up: what followed the last tokens when they were met before, in this request or in another."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._histories: dict[int, list[int]] = {}

    def propose(self, sequence: Sequence) -> list[int]:
        """`count` drafts for the next tokens of `sequence`."""
        self._histories[sequence.request] = sequence.tokens
        found = self._continuation(sequence.tokens)
        return (found + [FILLER_DRAFT] * self._count)[: self._count]

    def _continuation(self, tokens: list[int]) -> list[int]:
        for history in reversed(self._histories.values()):
            for end in range(len(history) - 1, MATCH - 1, -1):
                if history[end - MATCH : end] == tokens[-MATCH:]:
                    return history[end : end + self._count]
        return []
