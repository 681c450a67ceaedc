"""One plan cut into parts for several machines: the same cut everywhere, and each part about as long as the others."""

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
"""What a job is taken to last when nobody ever timed one."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Part `index` of `count`, counted from 1."""

    index: int
    count: int

    @classmethod
    def parsed(cls, text: str) -> Shard:
        """A shard as the command line writes it, ``2/4``. Raises InputError."""
        match = _FORM.match(text)
        if match is None:
            raise InputError(f"--shard {text}: not of the form I/N; give for example 1/4")
        index, count = int(match[1]), int(match[2])
        if not 1 <= index <= count:
            raise InputError(
                f"--shard {text}: shards are counted from 1 to N; give one from 1/{count} to {count}/{count}"
            )
        return cls(index, count)


def split(keys: Sequence[str], count: int, seconds: Mapping[str, float]) -> list[list[str]]:
    """Cut `keys` into `count` parts of about equal time, each in the order of `keys`; some may be empty.

    `seconds` says how long a key usually takes; one that is not in it is taken to last as long as the median of the
    others. The longest go first, each to the part with the least so far. Times count in steps of about a tenth, so that
    the noise of a history does not move keys about; equal ones are taken in an order that only their names decide.
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
    """`seconds` rounded to the next eighth of a power of two; a millisecond at least."""
    return float(2.0 ** (round(math.log2(max(seconds, 1e-3)) * 8) / 8))


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
