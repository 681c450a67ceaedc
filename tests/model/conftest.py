from __future__ import annotations

import pytest

from harness.engine.schedule.config import EngineModelConfig


def tiny(architecture: str, **changes: object) -> EngineModelConfig:
    """A model small enough that a float64 forward takes milliseconds."""
    hybrid = architecture == "kimi_linear"
    sizes: dict[str, object] = {
        "architecture": architecture,
        "vocab_size": 64,
        "hidden_size": 32,
        "num_layers": 2,
        "layer_types": ("kda", "mla") if hybrid else ("mla", "mla"),
        "num_heads": 2,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 8,
        "kv_lora_rank": 16,
        "intermediate_size": 48,
        "use_rope": not hybrid,
        "kda_num_heads": 2 if hybrid else 0,
        "kda_head_dim": 8 if hybrid else 0,
    }
    return EngineModelConfig(**(sizes | changes))  # type: ignore[arg-type]


@pytest.fixture(params=["deepseek_v2", "kimi_linear"])
def dense_config(request: pytest.FixtureRequest) -> EngineModelConfig:
    return tiny(request.param)


@pytest.fixture(params=["deepseek_v2", "kimi_linear"])
def moe_config(request: pytest.FixtureRequest) -> EngineModelConfig:
    return tiny(request.param, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)


@pytest.fixture
def hybrid_config() -> EngineModelConfig:
    return tiny("kimi_linear")


@pytest.fixture
def mla_config() -> EngineModelConfig:
    return tiny("deepseek_v2")
