"""What is noted about foreign code around a call, for whoever judges the call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Generic, TypeVar

from harness.memory.graph.launch import holding

NotedT = TypeVar("NotedT")


class Noted(Generic[NotedT]):
    """A list of what is noted, each thing once. `name` is unique in the process."""

    def __init__(self, name: str) -> None:
        self._list: ContextVar[list[NotedT] | None] = ContextVar(name, default=None)

    @contextmanager
    def noting(self) -> Iterator[list[NotedT]]:
        """What is noted within the block."""
        found: list[NotedT] = []
        with holding(self._list, found):
            yield found

    def note(self, one: NotedT) -> None:
        """Add to what is noted around this call, if anything notes."""
        found = self._list.get()
        if found is not None and one not in found:
            found.append(one)
