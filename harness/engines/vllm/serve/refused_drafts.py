"""The drafts that vLLM's scheduler of this process saw refused, by request and place."""

from __future__ import annotations

import functools
import importlib
from collections import Counter
from typing import Any

REFUSED: list[str] = []
"""`request 12 after 17 tokens: draft 2 of 3`, in the order of the steps. The first token of an answer has no drafts."""


def install() -> None:
    """Note each step in which the target refuses a draft."""
    scheduler: Any = importlib.import_module("vllm.v1.core.sched.scheduler").Scheduler
    original, verified = scheduler.make_spec_decoding_stats, Counter[str]()

    @functools.wraps(original)
    def noted(*args: Any, num_draft_tokens: int, num_accepted_tokens: int, request_id: str, **more: Any) -> Any:
        if num_accepted_tokens < num_draft_tokens:
            place = f"request {request_id} after {verified[request_id] + 1} tokens"
            REFUSED.append(f"{place}: draft {num_accepted_tokens + 1} of {num_draft_tokens}")
        verified[request_id] += num_accepted_tokens + 1
        counts = {"num_draft_tokens": num_draft_tokens, "num_accepted_tokens": num_accepted_tokens}
        return original(*args, request_id=request_id, **counts, **more)

    scheduler.make_spec_decoding_stats = noted
