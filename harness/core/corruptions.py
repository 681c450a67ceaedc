"""The table of corrupted calls: for each op what is wrong with an argument, and what its contract
allows. No torch.

A call is either right or ends in an error that names the argument. Silent garbage is neither.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Literal

from harness.core.errors import UnknownNameError
from harness.core.files import rows_beside
from harness.core.kernels import KernelSpec
from harness.core.registry import nearest

Contract = Literal["defined", "values", "undefined"]


@dataclass(frozen=True, slots=True)
class Corruption:
    """One way to corrupt a call.

    `change` is a function of :mod:`harness.judge.targets.corrupted` for the `argument`, `to` its
    parameter. An error must have one of `names`.

    - `right`: the op defines a result. With `means` that is the result of the call with this value
      in place of `to`.
    - `legal`: the arguments keep the contract of the op, so the result is defined and every kernel
      must give it.
    - `contract`, of a call that is not legal: `values`: only a look at values in device memory can
      tell; `undefined`: no kernel is asked for anything; `defined`: the host can tell.
    """

    name: str
    argument: str
    change: str
    to: int | float | str | None = None
    means: int | None = None
    right: bool = False
    legal: bool = False
    contract: Contract = "defined"
    names: tuple[str, ...] = ()

    def is_judged(self, spec: KernelSpec) -> bool:
        """Whether `spec` may neither return garbage for this call, nor fail without a clear
        error.
        """
        size = _SIZES.get(self.change)
        fits = size is None or spec.shapes is None or spec.shapes.accepts(size, int(self.to or 0))
        if self.legal and fits:
            return True
        if self.contract == "values":
            return spec.checks == "values"
        return self.contract == "defined" and spec.checks != "nothing"


_SIZES = {"heads": "num_heads"}
"""A change of an argument -> the size that it sets, which a kernel may have declared."""


@functools.cache
def _table() -> dict[str, dict[str, Any]]:
    return rows_beside(__file__)


@functools.cache
def corruptions(op: str) -> dict[str, Corruption]:
    """The corrupted calls of an op by name."""
    table, found = _table(), {}
    for name, row in table.get(op, {}).items():
        named = (row["argument"], *row.get("names", ()))
        right = row.get("right", False) or row.get("legal", False)
        every = dict.fromkeys(
            word for one in named for word in (one, *table["_names"].get(one, ()))
        )
        found[name] = Corruption(name, **{**row, "names": tuple(every), "right": right})
    return found


def corruptions_named(op: str, name: str) -> tuple[Corruption, ...]:
    """The corrupted call `name` of an op, or `all` of them.

    Raises UnknownNameError with the nearest name.
    """
    known = corruptions(op)
    if name not in ("", "all", *known):
        raise UnknownNameError(
            f"unknown corrupted call of {op} {name!r};"
            f" {nearest(name, ['all', *known], see='docs/ops.md')}"
        )
    return tuple(known.values()) if name == "all" else (known[name],) if name else ()
