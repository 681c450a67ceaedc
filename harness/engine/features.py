"""Which features of the engine do not go together, and why. No torch here."""

from __future__ import annotations

from collections.abc import Set

from harness.core.catalog import KERNELS
from harness.core.params import EngineParams
from harness.engine.schedule.model_config import ModelConfig


def why_not_together(config: ModelConfig, params: EngineParams) -> str | None:
    """Why the engine cannot serve this model with these parameters, in one sentence; None when it can."""
    kinds = set(config.layer_types)
    if params.prefix_caching and kinds & {"kda", "window"}:
        return "prefix_caching shares pages of full and sparse layers; a state or a window of another request it cannot"
    if params.speculative_tokens and "kda" in kinds:
        return "speculative_tokens with kda layers: a state cannot be taken back when a draft is wrong"
    if config.num_experts % params.expert_ranks:
        return f"expert_ranks {params.expert_ranks} with {config.num_experts} experts: each rank holds an equal share"
    if params.amax_rows == "batch" and (reason := _unwritten_rows(kinds, params)):
        return f"amax_rows batch needs padded rows that are finite, and {reason}"
    if params.max_batched_tokens <= params.speculative_tokens:
        return (
            f"max_batched_tokens {params.max_batched_tokens} with {params.speculative_tokens} drafts: a request "
            f"verifies {1 + params.speculative_tokens} tokens in one step"
        )
    return None


def _unwritten_rows(kinds: Set[str], params: EngineParams) -> str | None:
    """Which rows of padding nobody writes, in a clause; None where all are written."""
    if "sparse" in kinds:
        return "the decode of sparse layers writes none for padding"
    if params.dp_rank_tokens:
        return "those up to dp_rank_tokens are written by nobody"
    written = KERNELS.get(f"mla_decode/{params.decode_kernel}").empty_rows == "identity"
    if not (written or params.pad_keys or params.zero_fill_output):
        return (
            f"mla_decode/{params.decode_kernel} leaves those of empty requests as they were: set pad_keys or "
            "zero_fill_output, or take a kernel that writes them"
        )
    return None
