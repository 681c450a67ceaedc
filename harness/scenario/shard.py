"""Split a plan into equal parts for several machines. All machines get the same split."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from harness.core.errors import InputError

_FORM = re.compile(r"^(\d{1,4})/(\d{1,4})$")


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
            raise InputError(
                f"--shard {text}: not of the form I/N, or over 9999; give for example 1/4"
            )
        index = int(match[1])
        count = int(match[2])
        if not 1 <= index <= count:
            right = f"give one from 1/{count} to {count}/{count}"
            raise InputError(f"--shard {text}: shards are counted from 1 to N; {right}")
        return cls(index, count)


def split(keys: Sequence[str], count: int) -> list[list[str]]:
    """Split `keys` into `count` equal parts, each in the order of `keys`.

    A digest of a key decides its part.
    """
    # By digest, so that the long cases of one scenario do not go to one machine. Python's own hash
    # of a text differs from process to process.
    by_digest = sorted(keys, key=lambda key: hashlib.sha256(key.encode()).digest())
    dealt = {key: place % count for place, key in enumerate(by_digest)}
    return [[key for key in keys if dealt[key] == part] for part in range(count)]
