"""The table of bounds: how far a kernel may be from the float64 reference, and why.

`ulps` counts units in the last place of `dtype` at the expected element. `floor` is a share of the
row's scale (its root mean square), for elements that cancel to nearly nothing. `relative_l2` bounds
the error of each row as a whole; zeros, negated, permuted or rescaled rows exceed it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from harness.core.files import read_rows
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


def _bounds(row: dict[str, Any]) -> Iterator[Bound]:
    allowed = {
        field: row[field]
        for field in ("ulps", "floor", "relative_l2", "least_scale")
        if field in row
    }
    for name in row["bounds"]:
        yield Bound(name, dtype=getattr(torch, row["dtype"]), summary=row["why"].strip(), **allowed)


_ROWS = read_rows(Path(__file__).with_suffix(".yaml"))
BOUNDS: Registry[Bound] = Registry("bound", tuple(bound for row in _ROWS for bound in _bounds(row)))
"""The entries of `thresholds.yaml`, in its order."""


bound = BOUNDS.get
"""The bound of a name. Raises UnknownNameError with the nearest name."""
