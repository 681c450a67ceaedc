"""Split a plan into parts of equal time for several machines. All machines get the same split."""

from __future__ import annotations

import hashlib
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.core.errors import InputError

_FORM = re.compile(r"^(\d{1,4})/(\d{1,4})$")
_UNKNOWN_SECONDS = 1.0
"""The assumed time of a job without any history."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Part `index` of `count`, counted from 1."""

    index: int
    count: int

    @classmethod
    def parsed(cls, text: str) -> Shard:
        """The shard of an option such as ``2/4``. Raises InputError."""
        match = _FORM.match(text)
        if match is None:
            raise InputError(f"--shard {text}: not of the form I/N, or over 9999; give for example 1/4")
        index, count = int(match[1]), int(match[2])
        if not 1 <= index <= count:
            raise InputError(
                f"--shard {text}: shards are counted from 1 to N; give one from 1/{count} to {count}/{count}"
            )
        return cls(index, count)


def split(keys: Sequence[str], count: int, seconds: Mapping[str, float]) -> list[list[str]]:
    """Split `keys` into `count` parts of about equal time, each in the order of `keys`. A part may be empty.

    `seconds` is the usual time of a key. A key without one gets the median. The longest keys go first, each to the part
    with the least time so far. Times are rounded to steps of about a tenth, so that noise does not move keys. A digest
    of the names orders equal times.
    """
    usual = statistics.median(seconds.values()) if seconds else _UNKNOWN_SECONDS
    weights = {key: _stepped(seconds.get(key, usual)) for key in keys}
    loads = [0.0] * count
    part_of: dict[str, int] = {}
    for key in sorted(keys, key=lambda key: (-weights[key], _digest(key))):
        lightest = loads.index(min(loads))
        part_of[key] = lightest
        loads[lightest] += weights[key]
    parts: list[list[str]] = [[] for _ in range(count)]
    for key in keys:
        parts[part_of[key]].append(key)
    return parts


def _stepped(seconds: float) -> float:
    """`seconds`, at least a millisecond, rounded to the next eighth of a power of two."""
    return float(2.0 ** (round(math.log2(max(seconds, 1e-3)) * 8) / 8))


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
