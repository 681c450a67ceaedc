"""The faults of the engine and of its kernels: known bugs that are injected on purpose. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml


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


def _read(file: Path) -> Iterator[FaultSpec]:
    # libyaml is ten times as fast.
    rows = yaml.load(file.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    for name, row in rows.items():
        target, replacement = f"harness.{row['replaces']}", f"harness.engine.faults.{row['by']}"
        yield FaultSpec(name, row["ref"], row["bug"], target, replacement)


FAULTS = tuple(_read(Path(__file__).with_suffix(".yaml")))
"""The entries of `faults.yaml`, in its order."""
