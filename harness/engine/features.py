"""Features of the engine that exclude each other. No torch here."""

from __future__ import annotations

from harness.core.catalog import KERNELS
from harness.core.engine_params import EngineParams, conflicts
from harness.engine.schedule.model_config import ModelConfig


def why_not_together(config: ModelConfig, params: EngineParams) -> str:
    """Why the engine cannot serve this model with these parameters, in one sentence. Empty if it can."""
    return next(conflicts(params, set(config.layer_types), config.num_experts), _unwritten_rows(params))


def _unwritten_rows(params: EngineParams) -> str:
    """A scale that covers padding needs rows that the decode kernel writes."""
    written = KERNELS.get(f"mla_decode/{params.decode_kernel}").empty_rows == "identity"
    if params.amax_rows != "batch" or written or params.pad_keys or params.zero_fill_output:
        return ""
    return (
        f"amax_rows batch needs padded rows that are finite, and mla_decode/{params.decode_kernel} leaves rows of "
        "empty requests as they were: set pad_keys or zero_fill_output, or take a kernel that writes them"
    )
