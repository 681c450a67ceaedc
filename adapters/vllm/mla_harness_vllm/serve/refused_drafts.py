"""The drafts that vLLM's scheduler of this process saw refused, by request and place."""

from __future__ import annotations

import functools
import importlib
from typing import Any

REFUSED: list[str] = []
"""`request 12 after 17 tokens: draft 2 of 3`, in the order of the steps."""


def install() -> None:
    """Note each step in which the target refuses a draft, and keep placeholders out of vLLM's
    counts.

    vLLM pads the first step of a prompt that is cached to its last token, and counts the padding as
    refused drafts (vllm-project/vllm#50518).
    """
    scheduler: Any = importlib.import_module("vllm.v1.core.sched.scheduler").Scheduler
    original = scheduler.make_spec_decoding_stats

    @functools.wraps(original)
    def noted(self: Any, stats: Any, *, request_id: str, **more: Any) -> Any:
        drafted = more["num_draft_tokens"]
        accepted = more["num_accepted_tokens"]
        if accepted < drafted:
            if not (before := self.requests[request_id].num_output_tokens):
                return stats
            REFUSED.append(
                f"request {request_id} after {before} tokens: draft {accepted + 1} of {drafted}"
            )
        return original(self, stats, request_id=request_id, **more)

    scheduler.make_spec_decoding_stats = noted
