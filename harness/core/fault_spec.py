"""A fault: a known bug put back on purpose, as a patch of one named function that cannot be left applied."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

_applied: set[str] = set()


@dataclass(slots=True)
class Applied:
    """A fault while it is applied: one whose code nobody ran proves nothing."""

    was_reached: bool = False

    def watching(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, which notes here that it was called."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            self.was_reached = True
            return function(*args, **kwargs)

        return call


@dataclass(frozen=True, slots=True)
class FaultSpec:
    """A bug of the past: its name, the upstream reference, one sentence, and what it replaces by what.

    `target` is "module:attribute" or "module:Class.attribute", the correct code; `replacement` is the
    "module:function" that behaves as the bug did.
    """

    name: str
    ref: str
    summary: str
    target: str
    replacement: str

    @contextlib.contextmanager
    def applied(self) -> Iterator[Applied]:
        """Put the bug back for the length of the block. Raises RuntimeError when it is applied already."""
        if self.name in _applied:
            raise RuntimeError(f"fault {self.name} is applied already")
        module, _, path = self.target.partition(":")
        *owners, attribute = path.split(".")
        owner = importlib.import_module(module)
        for part in owners:
            owner = getattr(owner, part)
        original = owner.__dict__[attribute]
        source, _, function = self.replacement.partition(":")
        state = Applied()
        _applied.add(self.name)
        setattr(owner, attribute, state.watching(getattr(importlib.import_module(source), function)))
        try:
            yield state
        finally:
            setattr(owner, attribute, original)
            _applied.discard(self.name)
