"""Sentinels that name the owner of each byte of a cache.

A checksum proves that a copy is faithful. It does not prove that the right bytes were copied. So
each word of 8 bytes holds its owner: group, layer, rank, token, generation, and its place in the
token's record. Wherever the word lands, it can be compared with the owner that the logical token
needs there.
"""

from __future__ import annotations

import functools
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

MoveGroup = Literal["latent", "heads", "index", "window", "state"]
GROUPS: tuple[MoveGroup, ...] = get_args(MoveGroup)
"""Kinds of data in a block:

MLA latents, K and V by head, index keys, latents of window layers, recurrent states.
"""

_WIDTHS = {"group": 3, "layer": 7, "rank": 6, "token": 18, "generation": 10, "word": 14}
# With its 5 bits and the 58 of the fields, a word is a positive int64.
_MAGIC = 0b10110
_MAGIC_BITS = 5
WORD = 8
UNSENT_TOKEN = (1 << _WIDTHS["token"]) - 1
"""The token of memory that was given to an owner and not written since."""


class RecordOwner(NamedTuple):
    """The owner of a word.

    `rank` counts shards of the whole model: 0 for data that every rank has alike.

    `generation` is the number of the sequence of tokens: requests that share a prefix share it
    there.
    """

    group: int
    layer: int
    rank: int
    token: int
    generation: int
    word: int = 0

    def __str__(self) -> str:
        if self.token == UNSENT_TOKEN:
            return "memory that nothing was moved to"
        group = GROUPS[self.group] if self.group < len(GROUPS) else f"group {self.group}"
        place = (
            f"{group} of layer {self.layer}, shard {self.rank}, token {self.token} of sequence"
            f" {self.generation}"
        )
        return f"{place}, word {self.word}"


def _packed(owner: RecordOwner) -> int:
    word = _MAGIC
    for value, width in zip(owner, _WIDTHS.values(), strict=True):
        if not 0 <= value < 1 << width:
            raise ValueError(f"{owner!r} does not fit into a sentinel of {WORD} bytes")
        word = word << width | value
    return word


def owner_of(word: int) -> RecordOwner | None:
    """The owner that a 64-bit word names; None if it is no sentinel."""
    values = []
    for width in reversed(_WIDTHS.values()):
        values.append(word & ((1 << width) - 1))
        word >>= width
    return RecordOwner(*reversed(values)) if word == _MAGIC else None


@functools.lru_cache(maxsize=4096)
def records(
    group: int, layer: int, rank: int, generation: int, num_tokens: int, num_bytes: int
) -> Tensor:
    """The records [num_tokens, num_bytes] uint8 of tokens 0, 1, … of one owner.

    Do not write to them.
    """
    num_words = -(-num_bytes // WORD)
    # Raises unless the last token and the last word fit, so no sum below carries into another
    # field.
    _packed(RecordOwner(group, layer, rank, num_tokens, generation, num_words))
    first = _packed(RecordOwner(group, layer, rank, 0, generation))
    tokens = torch.arange(num_tokens, dtype=torch.int64) << (
        _WIDTHS["generation"] + _WIDTHS["word"]
    )
    words = first + tokens[:, None] + torch.arange(num_words, dtype=torch.int64)
    return words.view(torch.uint8)[:, :num_bytes]


def owner_records(
    group: str, layer: int, generation: int, num_tokens: int, num_bytes: int
) -> Tensor:
    """The records [num_tokens, num_bytes] uint8 of tokens 0, 1, … of a sequence in one layer.

    As :func:`records`, for an engine of one rank: `group` is one of GROUPS, `generation` the number
    of the sequence. Do not write to them.
    """
    names: tuple[str, ...] = GROUPS
    return records(names.index(group), layer, 0, generation, num_tokens, num_bytes)


def unsent(num_bytes: int) -> Tensor:
    """The bytes [num_bytes] of memory that has an owner and no content."""
    word = torch.tensor(_packed(RecordOwner(0, 0, 0, UNSENT_TOKEN, 0)), dtype=torch.int64)
    return word.repeat(-(-num_bytes // WORD)).view(torch.uint8)[:num_bytes]


def found_at(record: Tensor, byte: int) -> RecordOwner | None:
    """The owner of the word at `byte` of a record [num_bytes] uint8; None for a word that is cut or
    no sentinel.
    """
    start = byte - byte % WORD
    whole = record[start : start + WORD]
    return owner_of(int(whole.clone().view(torch.int64))) if len(whole) == WORD else None
