"""The faults of the engine and of its kernels: known bugs that are injected on purpose.

No torch here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness.core.files import rows_beside, with_tuples


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


def _fault(name: str, row: dict[str, Any]) -> FaultSpec:
    replacement = f"harness.engine.faults.{row['by']}" if "by" in row else ""
    gives = with_tuples(row).get("gives")
    return FaultSpec(name, row["ref"], row["bug"], f"harness.{row['replaces']}", replacement, gives)


FAULTS = tuple(_fault(name, row) for name, row in rows_beside(__file__).items())
"""The entries of `faults.yaml`, in its order."""
