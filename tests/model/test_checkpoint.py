from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from harness.engine.model import checkpoint
from harness.engine.model.transformer import CausalLM
from harness.engine.schedule.config import EngineModelConfig
from tests.transcripts import Approved

TOKENS = torch.arange(9).unsqueeze(0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_a_saved_model_gives_the_same_logits(
    moe_config: EngineModelConfig, tmp_path: Path, dtype: torch.dtype
) -> None:
    model = CausalLM(moe_config).reset_parameters(0).to(dtype)
    loaded = checkpoint.load(checkpoint.save(model, tmp_path / "new"), dtype)
    assert loaded.config == moe_config
    assert torch.equal(loaded(TOKENS), model(TOKENS))


def test_a_model_is_loaded_without_the_compiler_of_torch() -> None:
    # Its import takes a second, in each worker that asks a canary.
    program = (
        "import sys, torch; from harness.core.files import FIXTURES;"
        "from harness.engine.model import checkpoint;"
        "checkpoint.load(FIXTURES / 'canary-mla', torch.float32);"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@torch.no_grad()
def test_a_dense_model_and_tied_embeddings_survive(
    dense_config: EngineModelConfig, tmp_path: Path
) -> None:
    config = dataclasses.replace(dense_config, tie_word_embeddings=True)
    model = CausalLM(config).reset_parameters(0)
    loaded = checkpoint.load(checkpoint.save(model, tmp_path), torch.float32)
    assert torch.equal(loaded(TOKENS), model(TOKENS))
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")


@pytest.mark.parametrize(
    ("moe_config", "name"),
    [
        ("deepseek_v2", "model.layers.1.mlp.experts.3.gate_proj.weight"),
        ("deepseek_v2", "model.layers.0.self_attn.kv_a_proj_with_mqa.weight"),
        ("kimi_linear", "model.layers.1.block_sparse_moe.experts.3.w1.weight"),
        ("kimi_linear", "model.layers.0.block_sparse_moe.gate.e_score_correction_bias"),
        ("kimi_linear", "model.layers.0.self_attn.q_conv1d.weight"),
        ("kimi_linear", "model.layers.0.self_attn.A_log"),
    ],
    indirect=["moe_config"],
)
def test_tensors_carry_the_names_that_servers_read(
    moe_config: EngineModelConfig, tmp_path: Path, name: str
) -> None:
    checkpoint.save(CausalLM(moe_config).reset_parameters(0), tmp_path)
    assert name in load_file(tmp_path / "model.safetensors")


def test_decay_parameters_stay_float32_in_a_bfloat16_model(
    hybrid_config: EngineModelConfig, tmp_path: Path
) -> None:
    checkpoint.save(CausalLM(hybrid_config).reset_parameters(0).bfloat16(), tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    assert stored["model.layers.0.self_attn.A_log"].dtype == torch.float32
    assert (
        checkpoint.load(tmp_path, torch.bfloat16).get_parameter("layers.0.self_attn.A_log").dtype
        == torch.float32
    )


def test_a_missing_tensor_is_named(
    mla_config: EngineModelConfig, tmp_path: Path, approved: Approved
) -> None:
    checkpoint.save(CausalLM(mla_config).reset_parameters(0), tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    del stored["model.norm.weight"]
    save_file(stored, tmp_path / "model.safetensors")
    with approved.raises(ValueError):
        checkpoint.load(tmp_path, torch.float32)


def test_a_tensor_without_a_place_is_refused(
    mla_config: EngineModelConfig, tmp_path: Path, approved: Approved
) -> None:
    checkpoint.save(CausalLM(mla_config).reset_parameters(0), tmp_path)
    stored = load_file(tmp_path / "model.safetensors") | {"model.extra.weight": torch.zeros(1)}
    save_file(stored, tmp_path / "model.safetensors")
    with approved.raises(ValueError):
        checkpoint.load(tmp_path, torch.float32)
