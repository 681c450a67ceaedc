"""What the tables of faults hold. A fault is a known bug that is injected on purpose."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FaultSpec:
    """A bug of the past: its name, the upstream reference, one sentence, and what it replaces by what.

    `target` is the "module:function" or "module:Class.method" with the correct code, which is marked as a seam (see
    :mod:`harness.core.seams`). `replacement` is the "module:function" that behaves as the bug did. Both are empty for
    a fault of a real engine: the process that imports the engine injects it.
    """

    name: str
    ref: str
    summary: str
    target: str = ""
    replacement: str = ""
