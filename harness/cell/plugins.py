"""The kernels of plug-in files: in this process if they are trusted, else in a cell."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from harness.core.cases import CellOf
from harness.core.kernels import KernelSpec
from harness.kernels import plugins


def load_kernels(paths: Iterable[str | Path], where: CellOf | None) -> tuple[KernelSpec, ...]:
    """Load plug-in files, in the cell `where` if it names one. Returns the kernels they register.

    Raises InputError with file and line for a file that does not import, or registers nothing.
    """
    if where is None:
        return plugins.load_plugins(paths)
    # It imports torch, which a trusted file imports when it needs it.
    from harness.cell.client import load_in_cell

    return tuple(spec for path in paths for spec in load_in_cell(where, str(path)))


def describe_kernels(files: Sequence[str], where: CellOf | None) -> list[dict[str, Any]]:
    """As :func:`harness.kernels.plugins.describe_kernels`, in the cell `where` if it names one."""
    if where is None:
        return plugins.describe_kernels(files)
    started = time.process_time()
    specs = load_kernels(files, where)
    return plugins.described(specs, time.process_time() - started)
