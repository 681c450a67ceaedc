"""What a batch of `mla_decode` has beside its lengths: the order of its pages, shared pages, and
values.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from harness.core.ops import PAGE_SIZE

LEVEL = 4.0
LEVELS = 97
"""The largest element 0 of a planted key, and how many there are, 1/64 apart.

Other keys have 0. An fp8 cache holds it.

Requests have levels of their own: two equal scores of 1.5e4 in pages that are merged later would
differ by the rounding of a float32 log-sum-exp.
"""
SCORES = {"zero": 0.0, "ties": 12.0, "one_key": 40.0, "large": 1.5e4}
"""Values -> the score of a planted key. The others have 0."""
LOW = {"low": -30.0, "deep": -200.0}
"""Values -> about what every key scores. Padding that takes part with a score of 0 outweighs them
all, and exp(-200) is 0 in float32.
"""
BESIDE = 1.0 / 8
"""What the other elements of such a query are multiplied by: its scores differ, and none is far
from the others.
"""


def arranged(owned: Sequence[list[int]], words: Sequence[str]) -> list[list[int]]:
    """The pages of each request in the order of its word.

    `words` are repeated until each request has one.

    `repeated`: its last page is its first. `prefix`: its first page is that of the live request
    before it, `same`: all are, as far as that one has pages.
    """
    found = [list(pages) for pages in owned]
    live = [b for b, pages in enumerate(found) if pages]
    for place, b in enumerate(live):
        pages = found[b]
        word = words[b % len(words)]
        before = found[live[place - 1]] if place else []
        if word in ("rising", "falling"):
            pages.sort(reverse=word == "falling")
        elif word == "repeated":
            pages[-1] = pages[0]
        elif word in ("prefix", "same"):
            count = min(1 if word == "prefix" else len(pages), len(before))
            pages[:count] = before[:count]
    return found


def arranged_slots(slots: Tensor, before: Tensor, word: str) -> Tensor:
    """The `slots` [n] int32 of a token in the order of its word.

    `some` and `same` begin with slots of the token before it: `before` [m] int32, the first of them
    or all.
    """
    if word in ("rising", "falling"):
        return slots.sort(descending=word == "falling").values
    if word in ("some", "same"):
        kept = before[: 1 if word == "some" else len(slots)]
        others = slots[~torch.isin(slots, kept)]
        return torch.cat((kept, others))[: len(slots)]
    return slots


def plant_keys(
    b: int,
    word: str,
    latents: Tensor,
    length: int,
    num_tokens: int,
    pages: Sequence[int],
    page_size: int = PAGE_SIZE,
) -> None:
    """Give the keys of request b their element 0, in place: latents [slots, D] of `length`
    tokens.

    latents is float32, before it is stored in the cache's type.
    """
    latents[:, 0] = 0.0
    if word in ("plain", "zero") or not length:
        return
    if word in LOW:
        latents[:, 0] = LEVEL - b % LEVELS / 64
        return
    # The last key that every query token sees, or the last of the page before, if the last page is
    # there twice.
    is_twice = len(set(pages)) < len(pages)
    place = min((len(pages) - 1) * page_size - 1 if is_twice else length, length - num_tokens)
    first = place
    if word == "ties":
        # Both in one page.
        first = max(place - 1, place // page_size * page_size)
        place = min(first + 1, length - 1)
    latents[first : place + 1, 0] = LEVEL - b % LEVELS / 64


def plant_queries(
    words: Sequence[str], q: Tensor, scale: float, owners: Sequence[int] | None = None
) -> None:
    """Give the queries q [B, ..., D] of each request the scores of its word, in place.

    One element of such a query is not 0, or none, so scores are exact in any order of adding, and
    equal ones are equal. `owners` has the request of each row of q; without it row b is request b.

    q is bfloat16 or float32, `scale` the factor of the scores.
    """
    for row, b in zip(q, owners if owners is not None else range(len(q)), strict=True):
        word = words[b % len(words)]
        if word in LOW:
            row *= BESIDE
            row[..., 0] = LOW[word] / (LEVEL - b % LEVELS / 64) / scale
        elif word != "plain":
            row[...] = 0.0
            row[..., 0] = SCORES[word] / (LEVEL - b % LEVELS / 64) / scale


def plant_in(b: int, word: str, keys: Tensor, places: Sequence[int]) -> None:
    """Give the keys [n, ...] of unit b their element 0, in place: a level to the last of `places`,
    or the last two.

    keys is bfloat16 or float32; `places` are rows of it.
    """
    if word in LOW:
        keys[list(places), ..., 0] = LEVEL - b % LEVELS / 64
    elif word not in ("plain", "zero") and len(places):
        keys[list(places[-1 - (word == "ties") :]), ..., 0] = LEVEL - b % LEVELS / 64


def written_places(pages: Sequence[int], own: Sequence[int]) -> Tensor:
    """[n] int64: the places of the pages that a request writes: those that it got as its own, each
    once.
    """
    places = [
        place for place, page in enumerate(pages) if page in own and page not in pages[:place]
    ]
    return torch.tensor(places, dtype=torch.int64)


def slots_used(
    tables: Sequence[list[int]], lengths: Sequence[int], page_size: int = PAGE_SIZE
) -> dict[int, int]:
    """Page -> how many of its first slots some request of `lengths` reads."""
    used: dict[int, int] = {}
    for pages, length in zip(tables, lengths, strict=True):
        for i, page in enumerate(pages):
            used[page] = max(used.get(page, 0), min(length - i * page_size, page_size))
    return used
