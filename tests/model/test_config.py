from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest

from harness.engine.schedule.config import EngineModelConfig


def test_a_dense_config_survives_config_json(dense_config: EngineModelConfig) -> None:
    assert EngineModelConfig.from_hf(json.loads(json.dumps(dense_config.to_hf()))) == dense_config


def test_a_config_with_experts_survives_config_json(moe_config: EngineModelConfig) -> None:
    assert EngineModelConfig.from_hf(json.loads(json.dumps(moe_config.to_hf()))) == moe_config


def test_the_cache_row_is_the_latent_and_the_shared_key(mla_config: EngineModelConfig) -> None:
    assert mla_config.latent_dim == 20


def test_kimi_linear_counts_its_layers_from_one(hybrid_config: EngineModelConfig) -> None:
    linear = hybrid_config.to_hf()["linear_attn_config"]
    assert (linear["kda_layers"], linear["full_attn_layers"]) == ([1], [2])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": ("mla",)}, "layer_types names 1 layers"),
        ({"layer_types": ("mla", "kda")}, "has no kda layers"),
        ({"architecture": "gpt2"}, "architecture must be one of"),
        ({"qk_rope_head_dim": 5}, "must be even"),
        ({"num_experts": 2}, "num_experts_per_tok must be 1..2"),
    ],
)
def test_contradicting_sizes_are_refused(
    mla_config: EngineModelConfig, changes: dict, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(mla_config, **changes)


def test_compressed_queries_are_refused(mla_config: EngineModelConfig) -> None:
    with pytest.raises(ValueError, match="compressed queries"):
        EngineModelConfig.from_hf(mla_config.to_hf() | {"q_lora_rank": 8})


def test_reading_a_config_needs_no_torch() -> None:
    code = "import sys, harness.engine.schedule.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
