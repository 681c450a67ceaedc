"""Where every random number of a case comes from: its id and the run's `--seed`."""

from __future__ import annotations

import hashlib


def seed_of(identity: str, seed: int = 0) -> int:
    """The seed (31 bits) of the case called `identity`, so that the id alone reproduces it."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{identity}".encode()).digest()[:4], "big") >> 1
