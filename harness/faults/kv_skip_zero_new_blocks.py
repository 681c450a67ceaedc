"""New pages that still hold another layer's bits."""

from __future__ import annotations

from harness.engine.zeroing import CacheGroup, Group


def skip_attention_blocks(groups: tuple[CacheGroup, ...]) -> frozenset[Group]:
    """Zero no page: the check asked for full-attention layers, and MLA is another kind (vllm-project/vllm#43961)."""
    return frozenset()
