"""The faults of the engine and of its kernels: known bugs that are injected on purpose.

No torch here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.core.files import read_rows, with_tuples
from harness.core.ops import rows_of_ops

ENGINE_FAULTS = Path(__file__).parents[1] / "engine" / "faults.yaml"
"""The table stands beside the code that it names, as the table of an op does."""


@dataclass(frozen=True, slots=True)
class FaultSpec:
    """A bug of the past: its name, the upstream reference, one sentence, and what it replaces by
    what.

    `target` is the "module:function" or "module:Class.method" with the correct code, which is
    marked as a seam (see :mod:`harness.core.seams`). `replacement` is the "module:function" that
    behaves as the bug did. Without one the bug just returns what `gives` says: the argument of that
    name, any other value, or nothing for a step that is left out. A fault of a real engine has no
    target: the process that imports the engine injects it.
    """

    name: str
    ref: str
    summary: str
    target: str = ""
    replacement: str = ""
    gives: Any = None


def _fault(name: str, row: dict[str, Any], package: str, faults: str) -> FaultSpec:
    """The fault of a row. Its `replaces` is in `package`, and its `by` in `faults`, unless it says
    a whole module.
    """
    replacement = row.get("by", "")
    if replacement and not replacement.startswith("harness."):
        replacement = f"{faults}.{replacement}"
    target = f"{package}.{row['replaces']}"
    return FaultSpec(
        name, row["ref"], row["bug"], target, replacement, with_tuples(row).get("gives")
    )


def _of_ops() -> Iterator[FaultSpec]:
    for op, rows in rows_of_ops("faults.yaml").items():
        package = f"harness.ops.{op}"
        for name, row in rows.items():
            yield _fault(name, row, package, package)


FAULTS = (
    *_of_ops(),
    *(
        _fault(name, row, "harness", "harness.engine.faults")
        for name, row in read_rows(ENGINE_FAULTS).items()
    ),
)
"""The entries of each op's `faults.yaml`, and those of the engine's."""
