"""The table of corrupted calls: for each op what is wrong with an argument, and what its contract allows. No torch.

A call is either right or ends in an error that names the argument. Silent garbage is neither.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Literal

from harness.core.errors import UnknownNameError
from harness.core.files import rows_beside
from harness.core.registry import nearest

Contract = Literal["defined", "values", "undefined"]


@dataclass(frozen=True, slots=True)
class Corruption:
    """One way to corrupt a call.

    `change` is a function of :mod:`harness.judge.targets.corrupted` for the `argument`, `to` its parameter. `right`:
    the op defines a result. With `means` that is the result of the call with this value in place of `to`. `contract`:
    only a look at `values` in device memory can tell, so the result is undefined for a kernel that does not promise
    `checks_values`; `undefined` for all kernels. An error must have one of `names`.
    """

    name: str
    argument: str
    change: str
    to: int | float | str | None = None
    means: int | None = None
    right: bool = False
    contract: Contract = "defined"
    names: tuple[str, ...] = ()

    def is_defined(self, checks_values: bool) -> bool:
        """Whether a kernel with this promise may not return garbage or fail without a clear error."""
        return self.contract == "defined" or (self.contract == "values" and checks_values)


@functools.cache
def _table() -> dict[str, dict[str, Any]]:
    return rows_beside(__file__)


@functools.cache
def corruptions(op: str) -> dict[str, Corruption]:
    """The corrupted calls of an op by name."""
    table, found = _table(), {}
    for name, row in table.get(op, {}).items():
        named = (row["argument"], *row.get("names", ()))
        every = dict.fromkeys(word for one in named for word in (one, *table["_names"].get(one, ())))
        found[name] = Corruption(name, **{**row, "names": tuple(every)})
    return found


def corruptions_named(op: str, name: str) -> tuple[Corruption, ...]:
    """The corrupted call `name` of an op, or `all` of them. Raises UnknownNameError with the nearest name."""
    known = corruptions(op)
    if name not in ("", "all", *known):
        raise UnknownNameError(f"unknown corrupted call of {op} {name!r}: {nearest(name, list(known))}")
    return tuple(known.values()) if name == "all" else (known[name],) if name else ()
