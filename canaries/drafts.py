"""The task of canary-mtp: the chains of `canaries/recall.py`, with more words, so that each draft
of a module is known.

The words of a family have one of three signs. The word number n of an answer has sign n modulo 3.
"""

from __future__ import annotations

from pathlib import Path

from canaries import recall
from canaries.recall import COLD, FAMILY
from canaries.tasks import Question

HOPS = 24
"""Words of an answer, the last of them `#### N`."""
SIGNS = 3
NUM_FAMILIES = 57
LENGTHS = (76, 77, 78, 79, 95, 128, 129, *range(140, 900, 13))
"""Tokens of the prompts."""
HOT_TOKENS = (0, 10, 50, 100, 200)


def words() -> list[str]:
    """The vocabulary, by token id: the first 57 of the families of `recall`."""
    return recall.words()[: COLD + NUM_FAMILIES * FAMILY]


def questions() -> list[Question]:
    """A question for each length."""
    return [
        recall.question(
            number,
            length,
            HOT_TOKENS[number % len(HOT_TOKENS)],
            HOPS,
            NUM_FAMILIES,
            lambda hop: range(hop % SIGNS, FAMILY, SIGNS),
        )
        for number, length in enumerate(LENGTHS)
    ]


def write(file: Path) -> None:
    """Write the questions as JSON lines."""
    recall.write_mixed(questions(), file)
