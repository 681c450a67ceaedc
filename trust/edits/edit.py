"""What an edit is."""

from __future__ import annotations

from dataclasses import dataclass

ENGINE = "harness.engine."


@dataclass(frozen=True, slots=True)
class Edit:
    """In the function at `place`, `old` is replaced by `new`."""

    name: str
    place: str
    old: str
    new: str
    memory: bool = False
    """Whether the edit reads memory that nobody wrote, or writes memory of others."""
