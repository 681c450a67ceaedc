"""Numbers that an engine must keep besides the ones of each step: launches, and hits of the prefix cache."""

from __future__ import annotations

from collections.abc import Mapping

from harness.core.engine_params import EngineParams
from harness.core.systems import ENGINE_KERNELS
from harness.engine.schedule.config import PAGE_SIZE, num_pages
from harness.engine.schedule.sequence import Sequence
from harness.judge.run_records import Count


def length(request: tuple[int, int]) -> int:
    """Cached tokens of a request at its end: the last generated token is not cached."""
    prompt, count = request
    return prompt + count - 1


def counts_of_launches(params: EngineParams, launched: Mapping[str, int]) -> list[Count]:
    """Each kernel that every forward needs was launched: an engine that leaves one out may even round better."""
    fields = {"quantize_kernel", "blocks_kernel", "route_kernel"} - params.idle_kernels()
    names = {f"{ENGINE_KERNELS[field]}/{getattr(params, field)}" for field in fields}
    if params.quantize == "fp8_per_token":
        names.add("quantize_fp8/per-token")
    return [Count(f"launches of {name}, or 1 for any", 1, min(launched.get(name, 0), 1)) for name in sorted(names)]


def counts_after_flush(params: EngineParams, epochs: list[list[Sequence]]) -> list[Count]:
    """At least one request finds nothing in a cache that was just emptied: the first to start."""
    found = [min(sequence.num_shared_tokens for sequence in epoch) for epoch in epochs[params.epochs :] if epoch]
    return [Count("tokens that every request finds in the cache after a flush", 0, tokens) for tokens in found]


def counts_of_hits(params: EngineParams, epochs: list[list[Sequence]]) -> list[Count]:
    """A repeated prompt finds all its full pages but the last token's, if the pool has room for the pages of all.

    A LIFO list reuses cached pages although others are free. State changes empty the cache of the last epoch.
    """
    # A state, and copies of it at the ends of pages.
    states = 2 if "kda" in params.layers else 0
    pages = sum(num_pages(length(request) + params.speculative_tokens) + states for request in params.requests)
    has_room = pages * (params.epochs + params.flush) <= params.num_blocks - 3 and params.free_list == "fifo"
    if not (params.prefix_caching and has_room and params.num_hashes is None):
        return []
    return [
        Count(
            f"tokens of request {number} that are found in the cache in epoch {epoch}",
            (later.num_prompt_tokens - 1) // PAGE_SIZE * PAGE_SIZE,
            later.num_shared_tokens,
            oracle="policy",
        )
        for epoch in range(1, min(params.epochs - bool(params.changes), len(epochs)))
        for number, (first, later) in enumerate(zip(epochs[0], epochs[epoch], strict=True))
        if first.is_finished and later.is_finished
    ]
