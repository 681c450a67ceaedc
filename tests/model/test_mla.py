from __future__ import annotations

import torch

from harness.engine.model.layers import rotate
from harness.engine.model.mla import MLAAttention
from harness.engine.model.transformer import CausalLM
from harness.engine.schedule.config import EngineModelConfig


def _layer(config: EngineModelConfig) -> tuple[MLAAttention, torch.Tensor, torch.Tensor]:
    layer = CausalLM(config).double().reset_parameters(1).mla_layers()[0]
    x = torch.randn(
        7, config.hidden_size, dtype=torch.float64, generator=torch.Generator().manual_seed(2)
    )
    return layer, x, torch.arange(7)


def test_projections_have_the_shapes_of_the_cache_and_the_heads(
    dense_config: EngineModelConfig,
) -> None:
    layer, x, positions = _layer(dense_config)
    q_nope, q_pe = layer.project_q(x, positions)
    kv_c, k_pe = layer.project_kv(x, positions)
    k, v = layer.expand_kv(kv_c, k_pe)
    assert [t.shape for t in (q_nope, q_pe, kv_c, k_pe)] == [(7, 2, 8), (7, 2, 4), (7, 16), (7, 4)]
    assert (k.shape, v.shape) == ((7, 2, 12), (7, 2, 8))
    assert layer.absorb_q(q_nope).shape == (7, 2, 16)
    assert layer.project_out(v).shape == x.shape


def test_absorbed_attention_equals_expanded_attention(dense_config: EngineModelConfig) -> None:
    layer, x, positions = _layer(dense_config)
    q_nope, q_pe = layer.project_q(x, positions)
    kv_c, k_pe = layer.project_kv(x, positions)
    query = torch.cat((layer.absorb_q(q_nope), q_pe), dim=-1)
    scores = (
        torch.einsum("thd,cd->htc", query, torch.cat((kv_c, k_pe), dim=-1)) * layer.softmax_scale
    )
    future = torch.ones(7, 7, dtype=torch.bool).triu(1)
    weights = scores.masked_fill(future, -torch.inf).softmax(dim=-1)
    absorbed = layer.project_out(layer.expand_v(torch.einsum("htc,cr->thr", weights, kv_c)))
    expanded = layer(x.unsqueeze(0), positions).squeeze(0)
    assert (absorbed - expanded).abs().max() < 1e-12


def test_scores_under_rope_depend_on_distance_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 8, dtype=torch.float64, generator=generator)
    starts = [torch.tensor([i]) for i in (0, 5, 900)]
    scores = [(rotate(q, i, 1e4) * rotate(k, i + 3, 1e4)).sum() for i in starts]
    assert max(scores) - min(scores) < 1e-12


def test_rope_turns_neighbouring_numbers_as_pairs() -> None:
    turned = rotate(
        torch.tensor([[1.0, 0.0, 1.0, 0.0]], dtype=torch.float64), torch.tensor([1]), 100.0
    )
    angles = torch.tensor([1.0, 0.1], dtype=torch.float64)
    expected = torch.stack((angles.cos(), angles.sin()), dim=-1).flatten()
    assert (turned[0] - expected).abs().max() < 1e-12


def test_a_cache_transform_reaches_dense_attention_and_not_the_projections(
    mla_config: EngineModelConfig,
) -> None:
    layer, x, positions = _layer(mla_config)
    plain = layer(x.unsqueeze(0), positions)
    kv_c, _ = layer.project_kv(x, positions)
    layer.cache_transform = lambda kv_c, k_pe: (kv_c * 2, k_pe)
    assert not torch.equal(layer(x.unsqueeze(0), positions), plain)
    assert torch.equal(layer.project_kv(x, positions)[0], kv_c)
