"""Parameters whose values are names in a registry: which of them name nothing, with the nearest
name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from harness.core.catalog import KERNELS
from harness.core.corruptions import corruptions_named
from harness.core.errors import UnknownNameError
from harness.core.registry import nearest


def unknown_names(
    kernels: Mapping[str, str], op: str | None, given: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Each parameter in `given` that names a kernel or a corrupted call which is not there, with a
    message.

    `kernels` maps the parameters that name a kernel to their ops, `op` is the op of the case.
    """
    for name, its_op in kernels.items():
        if name in given and f"{its_op}/{given[name]}" not in KERNELS:
            known = [spec.short_name for spec in KERNELS if spec.op == its_op]
            yield (
                name,
                f"unknown kernel {given[name]!r} of {its_op}; {nearest(str(given[name]), known)}",
            )
    if op and "corrupt" in given:
        try:
            corruptions_named(op, str(given["corrupt"]))
        except UnknownNameError as error:
            yield "corrupt", str(error)
