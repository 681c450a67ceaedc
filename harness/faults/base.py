"""A fault: a known bug put back on purpose, as a patch of one named function that cannot be left applied."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from dataclasses import dataclass

_applied: set[str] = set()


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
    def applied(self) -> Iterator[None]:
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
        _applied.add(self.name)
        setattr(owner, attribute, getattr(importlib.import_module(source), function))
        try:
            yield
        finally:
            setattr(owner, attribute, original)
            _applied.discard(self.name)
