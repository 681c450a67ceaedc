"""The requests that part `hicache` serves, one at a time."""

from __future__ import annotations

REQUESTS = ((0, 3), (1, 4), (2, 3), (0, 5), (1, 6), (3, 4), (2, 5), (0, 7), (4, 7), (1, 8))
"""Requests in order: a number, and the pages of the prompt.

A number that returns has the same tokens and more.
"""
SHARES = {3: (1, 2), 4: (0, 5)}
"""Number -> the number that it begins as, and for how many pages."""


def owner(number: int, page: int) -> int:
    """The number of the request whose tokens a page of a prompt has."""
    shared, length = SHARES.get(number, (number, 0))
    return shared if page < length else number
