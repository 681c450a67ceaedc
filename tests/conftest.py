"""What every test leaves as it found it: the registry of kernels, and the files of plug-ins that were loaded."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from harness.core.catalog import KERNELS

# Matrices are small here. Several workers with several threads each would take ten times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def _forget_kernels_that_a_test_registers() -> Iterator[None]:
    entries = dict(KERNELS._entries)
    # Imported by whom it concerns only: with torch behind it, it would slow down tests of what needs none.
    loaded = dict(getattr(sys.modules.get("harness.kernels.plugins"), "_loaded", {}))
    yield
    KERNELS._entries.clear()
    KERNELS._entries.update(entries)
    plugins = sys.modules.get("harness.kernels.plugins")
    if plugins is not None:
        plugins._loaded.clear()
        plugins._loaded.update(loaded)
