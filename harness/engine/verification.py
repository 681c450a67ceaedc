"""Speculative decoding: drafts, and their verification by the target's tokens."""

from __future__ import annotations

from torch import Tensor

from harness.core.seams import seam
from harness.engine.schedule.sequence import Sequence

MATCH = 2
"""How many last tokens must match earlier ones."""
FILLER_DRAFT = 0
"""The draft without a match. All decoding requests of a batch verify the same number of drafts."""


@seam("verify.nan-row-to-vocab-size")
def greedy_tokens(logits: Tensor) -> Tensor:
    """The token [rows] int64 with the largest logit of each row of [rows, vocab], padded rows included.

    A row of NaN must give a token of the vocabulary: the drafter looks up the tokens of padded rows too (PR 53029).
    """
    return logits.argmax(dim=-1)


def confirmed(drafts: list[int], tokens: list[int]) -> list[int]:
    """The target's tokens up to the first wrong draft.

    `tokens` [1 + len(drafts)] are the target's choices after the last token and after each draft.
    """
    given = tokens[:1]
    for draft, token in zip(drafts, tokens[1:], strict=True):
        if draft != given[-1]:
            break
        given.append(token)
    return given


class SuffixDrafts:
    """Drafts are the tokens that followed an earlier match of the last tokens, in any request."""

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
