"""A plan made anew for each step, while the captured graph keeps reading the first one."""

from __future__ import annotations

from typing import Any


def rebind_plan(plans: dict[int, Any], size: int, fresh: Any) -> None:
    """Keep the new plan, and leave the tensors that the graph captured as they were (vllm-project/vllm#35175)."""
    plans[size] = fresh
