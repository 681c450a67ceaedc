from __future__ import annotations

import pytest
import torch

from harness.engine.model.layers import MoE, route
from harness.engine.model.transformer import CausalLM
from harness.engine.schedule.config import EngineModelConfig

TOKENS = torch.randint(0, 64, (2, 11), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@torch.no_grad()
def test_logits_are_finite_and_well_spread_in_every_dtype(
    dense_config: EngineModelConfig, dtype: torch.dtype
) -> None:
    logits = CausalLM(dense_config).to(dtype).reset_parameters(0)(TOKENS)
    assert (logits.shape, logits.dtype) == ((2, 11, 64), dtype)
    assert 2.0 < logits.double().std() < 8.0


@torch.no_grad()
def test_a_later_token_changes_no_earlier_logit(dense_config: EngineModelConfig) -> None:
    model = CausalLM(dense_config).double().reset_parameters(0)
    changed = TOKENS.clone()
    changed[:, 8] = (changed[:, 8] + 1) % 64
    difference = (model(TOKENS) - model(changed)).abs().amax(dim=(0, 2))
    assert difference[:8].max() < 1e-12 < difference[8:].min()


@torch.no_grad()
def test_float32_stays_near_the_float64_reference(moe_config: EngineModelConfig) -> None:
    wide = CausalLM(moe_config).double().reset_parameters(0)(TOKENS)
    narrow = CausalLM(moe_config).reset_parameters(0)(TOKENS)
    assert (narrow - wide).norm() / wide.norm() < 1e-5


def test_the_seed_fixes_the_weights(dense_config: EngineModelConfig) -> None:
    first, again, other = (CausalLM(dense_config).reset_parameters(seed) for seed in (5, 5, 6))
    assert torch.equal(first.lm_head.weight, again.lm_head.weight)
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)


@torch.no_grad()
def test_experts_are_summed_by_their_ids_and_weights(moe_config: EngineModelConfig) -> None:
    moe = CausalLM(moe_config).double().reset_parameters(0).layers[0].mlp
    assert isinstance(moe, MoE) and moe.shared_experts is not None
    x = torch.randn(5, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    ids, weights = route(moe.gate(x), 2)
    assert ids.dtype == torch.int32
    expected = moe.shared_experts(x)
    for t in range(5):
        for i, w in zip(ids[t].tolist(), weights[t], strict=True):
            gate, up = moe.experts.gate_proj[i] @ x[t], moe.experts.up_proj[i] @ x[t]
            expected[t] += w * (moe.experts.down_proj[i] @ (torch.nn.functional.silu(gate) * up))
    assert (moe(x) - expected).abs().max() < 1e-12
    assert torch.equal(moe(x), moe.combine(x, ids, weights))


def test_every_parameter_receives_a_gradient(moe_config: EngineModelConfig) -> None:
    model = CausalLM(moe_config).reset_parameters(0)
    model(TOKENS).square().mean().backward()
    assert [
        name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()
    ] == []
