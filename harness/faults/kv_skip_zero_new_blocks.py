"""New pages that still hold another layer's bits."""

from __future__ import annotations

from harness.engine.scheduler import Step


def skip_attention_blocks(step: Step, is_hybrid: bool) -> tuple[int, ...]:
    """Zero no page: the check asked for full-attention layers, and MLA is another kind (vllm-project/vllm#43961)."""
    return ()
