"""The faults of the engine and of its kernels: known bugs that are injected on purpose. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

from harness.core.files import rows_beside


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


def _fault(name: str, row: dict[str, str]) -> FaultSpec:
    """The fault of a row."""
    target, replacement = f"harness.{row['replaces']}", f"harness.engine.faults.{row['by']}"
    return FaultSpec(name, row["ref"], row["bug"], target, replacement)


FAULTS = tuple(_fault(name, row) for name, row in rows_beside(__file__).items())
"""The entries of `faults.yaml`, in its order."""
