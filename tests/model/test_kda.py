from __future__ import annotations

import pytest
import torch

from harness.engine.model import kda
from harness.engine.model.kda import KimiDeltaAttention
from harness.engine.model.transformer import CausalLM
from harness.engine.schedule.config import EngineModelConfig


def _layer(
    config: EngineModelConfig, dtype: torch.dtype = torch.float64
) -> tuple[KimiDeltaAttention, torch.Tensor]:
    layer = CausalLM(config).to(dtype).reset_parameters(3).layers[0].self_attn
    assert isinstance(layer, KimiDeltaAttention)
    x = torch.randn(2, 37, config.hidden_size, generator=torch.Generator().manual_seed(4)).to(dtype)
    return layer, x


def _states(layer: KimiDeltaAttention, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    shapes = layer.state_shapes()
    return torch.zeros(shapes["conv"], dtype=dtype), torch.zeros(shapes["ssm"], dtype=dtype)


@pytest.mark.parametrize("pieces", [(37,), (1,) * 37, (20, 1, 16), (2, 35)])
@torch.no_grad()
def test_steps_of_any_length_equal_the_dense_forward(
    hybrid_config: EngineModelConfig, pieces: tuple[int, ...]
) -> None:
    layer, x = _layer(hybrid_config)
    states = _states(layer, torch.float64)
    out = torch.cat([layer.step(piece, *states) for piece in x[0].split(pieces)])
    assert (out - layer(x)[0]).abs().max() < 1e-10


@torch.no_grad()
def test_a_batch_of_steps_equals_steps_one_by_one(hybrid_config: EngineModelConfig) -> None:
    layer, x = _layer(hybrid_config)
    alone = [_states(layer, torch.float64) for _ in range(2)]
    conv, ssm = (torch.stack(parts) for parts in zip(*alone, strict=True))
    together = layer.step_batch(x, conv, ssm)
    for row in range(2):
        assert (layer.step(x[row], *alone[row]) - together[row]).abs().max() < 1e-12
        assert (alone[row][0] - conv[row]).abs().max() < 1e-12
        assert (alone[row][1] - ssm[row]).abs().max() < 1e-12


@torch.no_grad()
def test_a_bfloat16_step_keeps_a_float32_state(hybrid_config: EngineModelConfig) -> None:
    layer, x = _layer(hybrid_config, torch.bfloat16)
    shapes = layer.state_shapes()
    conv, ssm = torch.zeros(shapes["conv"], dtype=torch.bfloat16), torch.zeros(shapes["ssm"])
    out = torch.cat([layer.step(token, conv, ssm) for token in x[0].split(1)])
    dense = layer(x)[0]
    assert (out.float() - dense.float()).norm() / dense.float().norm() < 0.01
    assert ssm.abs().max() > 0


def test_chunks_survive_decays_whose_exponential_overflows() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 1, 40, 2, 4, generator=generator).unbind(0)
    g = -200.0 * torch.rand(1, 40, 2, 4, generator=generator)
    beta = torch.rand(1, 40, 2, generator=generator)
    state = torch.randn(1, 2, 4, 4, generator=generator)
    k = torch.nn.functional.normalize(k, dim=-1)
    inputs = (q, k, v, g, beta, state)
    for left, right in zip(kda.chunked(*inputs), kda.recurrent(*inputs), strict=True):
        assert torch.isfinite(left).all()
        assert (left - right).abs().max() < 1e-4


def test_gradients_of_both_forms_agree() -> None:
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, 19, 2, 4, dtype=torch.float64, generator=generator) for _ in range(3))
    k = torch.nn.functional.normalize(k, dim=-1)
    state = torch.zeros(1, 2, 4, 4, dtype=torch.float64)
    grads = []
    for form in (kda.chunked, kda.recurrent):
        g = (
            torch.linspace(-2.0, -0.1, 152, dtype=torch.float64)
            .view(1, 19, 2, 4)
            .detach()
            .requires_grad_()
        )
        beta = torch.full((1, 19, 2), 0.7, dtype=torch.float64, requires_grad=True)
        leaf = k.clone().requires_grad_()
        form(q, leaf, v, g, beta, state)[0].square().sum().backward()
        grads.append((g.grad, beta.grad, leaf.grad))
    for left, right in zip(*grads, strict=True):
        assert left is not None and right is not None
        assert (left - right).abs().max() < 1e-10
