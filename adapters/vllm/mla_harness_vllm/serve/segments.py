"""Poison between the segments of vLLM's breakable CUDA graphs, which 0.33.0 uses for Kimi Linear,
V3.2, V4 and GLM.
"""

from __future__ import annotations

import importlib
from typing import Any

from mla_harness_vllm.serve.segment_fill import SegmentFill
from mla_harness_vllm.serve.writes import FILLED

MODULE = "vllm.compilation.breakable_cudagraph"


class NotedSegments(list[Any]):
    """The segments of one capture; each that is added notes what tensors own at its end."""

    def __init__(self, pool: Any) -> None:
        super().__init__()
        self.fill = SegmentFill(pool)

    def append(self, segment: Any) -> None:
        super().append(segment)
        self.fill.note()


def install() -> None:
    """Wrap the capture and the replay of breakable graphs, if this release has them."""
    try:
        capture = importlib.import_module(MODULE).BreakableCUDAGraphCapture
    except ImportError:
        return
    begin = capture.__init__

    def __init__(self: Any, pool: Any = None) -> None:
        begin(self, pool=pool)
        if pool is not None:
            self.segments = NotedSegments(pool)

    def replay(self: Any) -> None:
        if isinstance(self.segments, NotedSegments):
            FILLED.segments += self.segments.fill.replay(self.segments)
        else:
            for segment in self.segments:
                segment()

    capture.__init__ = __init__
    capture.replay = replay
