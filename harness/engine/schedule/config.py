"""What the parameters of an engine case mean for the model and its caches."""

from __future__ import annotations

from harness.core.catalog import KERNELS
from harness.core.engine_params import EngineParams, conflicts
from harness.core.ops import PAGE_SIZE
from harness.engine.schedule.model_config import ModelConfig

__all__ = ["KV_SCALE", "NULL_BLOCK", "PAGE_SIZE", "model_config", "num_pages"]

NULL_BLOCK = 0
"""The block without an owner. Unused block-table entries name it, and its state is never updated."""

KV_SCALE = 0.04
"""The default scale of an fp8 cache. Latents have unit variance, and eleven standard deviations fit into e4m3's 448."""


def num_pages(num_tokens: int) -> int:
    """The number of pages for `num_tokens` tokens."""
    return -(-num_tokens // PAGE_SIZE)


def model_config(params: EngineParams) -> ModelConfig:
    """The model of a case: DeepSeek-V2 when all layers are MLA, Kimi Linear (no RoPE) when some are KDA."""
    hybrid = "kda" in params.layers
    return ModelConfig(
        architecture="kimi_linear" if hybrid else "deepseek_v2",
        vocab_size=params.vocab_size,
        hidden_size=params.hidden_size,
        num_layers=len(params.layers),
        layer_types=params.layers,
        num_heads=params.num_heads,
        qk_nope_head_dim=params.qk_nope_head_dim,
        qk_rope_head_dim=params.qk_rope_head_dim,
        v_head_dim=params.v_head_dim,
        kv_lora_rank=params.kv_lora_rank,
        intermediate_size=2 * params.hidden_size,
        use_rope=not hybrid,
        kda_num_heads=params.num_heads if hybrid else 0,
        kda_head_dim=params.v_head_dim if hybrid else 0,
        sliding_window=params.window if "window" in params.layers else 0,
        index_topk=params.index_topk if "sparse" in params.layers else 0,
        num_experts=params.num_experts,
        num_experts_per_tok=min(params.num_experts_per_tok, params.num_experts),
        moe_intermediate_size=params.hidden_size if params.num_experts else 0,
    )


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
