"""What stands between an op's call and a function that has another one: a style, and how the
function gives its lse.

Both are words of `@kernel`. In a cell they are applied there, else where the decorator is.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from harness.core.errors import InputError
from harness.core.ops import OPS, ops_with, part_of

Function = Callable[..., Any]
WORDS = ("style", "lse_base", "lse_order")
"""The words of `@kernel` that are meant for adapters."""
LN_2 = math.log(2)
"""A logarithm to base 2, times this, is a natural one."""


@functools.cache
def styles_of(op: str) -> dict[str, Callable[[Function], Function]]:
    """The styles of an op: name -> what gives a function of this style the op's arguments."""
    found: dict[str, Callable[[Function], Function]] = (
        part_of(op, "styles:STYLES") if op in ops_with("styles.py") else {}
    )
    return found


def load_all() -> None:
    """Load what `adapted` needs of all ops, for a process that can import nothing later."""
    for op in OPS:
        styles_of(op.name)
        if op.gives_lse:
            _axes(op.name)


def check(op: str, kernel_name: str, words: Mapping[str, Any]) -> None:
    """Raise InputError for a style or an lse that the op does not have."""
    if style := words.get("style"):
        _check_style(op, kernel_name, style)
    base, order = words.get("lse_base", "e"), words.get("lse_order", "")
    if base == "e" and not order:
        return
    if not OPS.get(op).gives_lse:
        word = "lse_order" if order else "lse_base"
        raise InputError(f"kernel {kernel_name!r}: {word}, but {op} has no lse; leave it out")
    if base not in ("e", "2"):
        raise InputError(f"kernel {kernel_name!r}: lse_base={base!r}; write 'e' or '2'")
    letters = _axes(op)
    if order and sorted(str(order).split()) != sorted(letters):
        raise InputError(
            f"kernel {kernel_name!r}: lse_order={order!r}; write the axes {' '.join(letters)} in"
            " the order of your kernel, with spaces between"
        )


def _check_style(op: str, kernel_name: str, style: str) -> None:
    known = styles_of(op)
    if not known:
        raise InputError(
            f"kernel {kernel_name!r}: style={style!r}, but {op} has no styles; leave it out"
        )
    if style not in known:
        raise InputError(
            f"kernel {kernel_name!r}: style={style!r} is unknown; choose from {', '.join(known)}"
        )


def adapted(op: str, words: Mapping[str, Any], function: Function) -> Function:
    """`function` with the arguments of the op, and with the op's lse."""
    if style := words.get("style"):
        function = styles_of(op)[style](function)
    base, order = words.get("lse_base", "e"), words.get("lse_order", "")
    if base == "e" and not order:
        return function
    return _with_lse(function, is_binary=base == "2", axes=_order(op, order))


@functools.cache
def _axes(op: str) -> tuple[str, ...]:
    """The letters of the op's lse: ("B", "H", "S")."""
    (lse,) = (output for output in OPS.get(op).outputs if output.name == "lse")
    return tuple(lse.shape.split())


def _order(op: str, order: str) -> tuple[int, ...] | None:
    """How a kernel's lse is permuted to the op's; None if it has the op's order."""
    own = order.split()
    return tuple(own.index(letter) for letter in _axes(op)) if own else None


def _with_lse(function: Function, is_binary: bool, axes: tuple[int, ...] | None) -> Function:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        if not isinstance(result, tuple | list) or len(result) != 2:
            # How many values there should be is said by whoever looks at them.
            return result
        out, lse = result
        if axes is not None and getattr(lse, "ndim", 0) == len(axes):
            lse = lse.permute(axes)
        return out, lse * LN_2 if is_binary else lse

    return call
