"""A plan made once, before the capture, so that no replay plans."""

from __future__ import annotations

from harness.engine.batch import DecodeMetadata


def share_warmup_metadata(warmed_up: DecodeMetadata) -> DecodeMetadata:
    """Capture with the warm-up's metadata, which has a plan, so no planning is captured (vllm-project/vllm#42444)."""
    return warmed_up
