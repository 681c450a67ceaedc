"""The table of bounds: how far a kernel may be from the float64 reference, and why.

`ulps` counts units in the last place of `dtype` at the expected element. `floor` is a share of the
row's scale (its root mean square), for elements that cancel to nearly nothing. `relative_l2` bounds
the error of each row as a whole; zeros, negated, permuted or rescaled rows exceed it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from harness.core.files import read_rows
from harness.core.ops import OPS_FOLDER, rows_of_ops
from harness.core.registry import Registry


@dataclass(frozen=True, slots=True)
class Bound:
    """The bound of one kind of output.

    `ulps` or `floor` applies to an element, whichever allows more.
    """

    name: str
    dtype: torch.dtype
    ulps: float
    floor: float
    relative_l2: float
    summary: str
    """The reason of the bound."""
    least_scale: float = 1e-6
    """The least scale of a row: a row of zeros allows `floor * least_scale`."""


def _bounds(of: str, rows: list[dict[str, Any]]) -> Iterator[Bound]:
    """The bounds in the rows of a `tolerances.yaml`; their names begin with `of`."""
    for row in rows:
        allowed = {
            field: row[field]
            for field in ("ulps", "floor", "relative_l2", "least_scale")
            if field in row
        }
        for name in row["bounds"]:
            yield Bound(
                f"{of}.{name}" if name else of,
                dtype=getattr(torch, row["dtype"]),
                summary=row["why"].strip(),
                **allowed,
            )


_TABLES = rows_of_ops("tolerances.yaml")
_TABLES["engine"] = read_rows(OPS_FOLDER.parent / "engine" / "tolerances.yaml")
BOUNDS: Registry[Bound] = Registry(
    "bound", tuple(bound for of, rows in _TABLES.items() for bound in _bounds(of, rows))
)
"""The entries of each op's `tolerances.yaml`, and those of the engine."""


bound = BOUNDS.get
"""The bound of a name. Raises UnknownNameError with the nearest name."""
