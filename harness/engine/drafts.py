"""Drafts without a model: the tokens that once followed the same tokens."""

from __future__ import annotations

from harness.engine.schedule.sequence import Sequence

MATCH = 2
"""How many last tokens must match earlier ones."""
FILLER_DRAFT = 0
"""The draft without a match. All decoding requests of a batch verify the same number of drafts."""


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
