"""The fence of the case whose kernel is called."""

from __future__ import annotations

from contextvars import ContextVar

from torch_poison.fences import Fence

FENCE: ContextVar[Fence] = ContextVar("harness_cell_fence", default="none")
"""Set by the target of a case: a call of a kernel has no argument for it."""
