"""Drafts that vLLM counts before a request has a token: python benchmarks/padded_first_drafts.py

Needs vLLM and the harness, on a CPU. A prompt is served twice. The second time it is cached to its
last token, and the scheduler pads its first step with placeholders to the shape of a decode with
drafts (vllm-project/vllm#45237). They are counted as drafts that the target refused;
vllm-project/vllm#50518 leaves them out. Exit code 1 if they are counted.

Before 0.33.0 the last cached block was dropped where a drafter reads hidden states, so no prompt
was cached to its last token. Since then the hash of a block covers the token behind it.
"""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"
import inspect
from typing import Any

import vllm
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher

from mla_harness_vllm.host.kv_layers import BLOCK, layers_of, planned
from mla_harness_vllm.host.kv_moves import request_of, runner_output, scheduler_of, settings

DRAFTS, ANSWER = 3, 9


class Eagle:
    """The settings of a drafter that reads the target's hidden states, and the token behind each
    row.
    """

    num_speculative_tokens, disable_lookahead_block_hashes = DRAFTS, False

    def __getattr__(self, name: str) -> Any:
        return (lambda: "eagle" in name) if name.startswith(("use", "needs")) else 0


def served(is_async: bool) -> list[str]:
    """Serve the prompt twice, each draft accepted.

    Returns the steps with drafts that were counted and not accepted.
    """
    layers, found = layers_of("", 0), list[str]()
    config = settings("", is_async, "engine", layers)
    config.speculative_config = Eagle()
    scheduler: Any = scheduler_of(config, planned(config, layers), is_async)
    ahead = {"num_hash_lookahead_tokens": getattr(config, "num_hash_lookahead_tokens", 0)}
    known = inspect.signature(get_request_block_hasher).parameters
    hasher = get_request_block_hasher(
        BLOCK, sha256, **{name: ahead[name] for name in ahead if name in known}
    )
    original = scheduler.make_spec_decoding_stats

    def noted(
        *args: Any, num_draft_tokens: int, num_accepted_tokens: int, request_id: str, **more: Any
    ) -> Any:
        if num_accepted_tokens < num_draft_tokens:
            before = scheduler.requests[request_id].num_output_tokens
            found.append(
                f"request {request_id} after {before} tokens: {num_accepted_tokens} of"
                f" {num_draft_tokens}"
            )
        counts = {"num_draft_tokens": num_draft_tokens, "num_accepted_tokens": num_accepted_tokens}
        return original(*args, request_id=request_id, **counts, **more)

    scheduler.make_spec_decoding_stats = noted
    for number in (0, 1):
        request = request_of(number, list(range(1, 2 * BLOCK + 2)), ANSWER)
        request._block_hasher, request.block_hashes = hasher, []
        request.block_hashes = hasher(request)
        scheduler.add_request(request)
        name, drafted = str(number), False
        while name in scheduler.requests:
            scheduled = scheduler.schedule()
            is_prompt = request.num_computed_tokens < request.num_prompt_tokens
            # A right drafter drafts behind the first token. Placeholders before it are never
            # accepted.
            num_accepted = (
                len(scheduled.scheduled_spec_decode_tokens.get(name, ())) if drafted else 0
            )
            tokens = [] if is_prompt else [600] * (1 + num_accepted)
            scheduler.update_from_output(scheduled, runner_output({name: tokens}))
            drafted = drafted or bool(tokens)
            if drafted and not is_async:
                request.spec_token_ids = [600] * DRAFTS
    return found


print(f"vLLM {vllm.__version__}")
refused = {f"asynchronous scheduling {is_async}": served(is_async) for is_async in (False, True)}
for how, steps in refused.items():
    print(f"{how}: {', '.join(steps) or 'every counted draft is accepted'}")
raise SystemExit(int(any(refused.values())))
