"""The model against witnesses that share none of its code: transformers' DeepseekV2, and the
papers' formulas.

The engine and its reference share `harness.engine.model`, so an error there is right on both sides
of every case.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from harness.core.files import FIXTURES
from harness.engine.model.checkpoint import load_config, save
from harness.engine.model.kda import KimiDeltaAttention, recurrent
from harness.engine.model.layers import MLP, MoE, RMSNorm
from harness.engine.model.mla import MLAAttention
from harness.engine.model.transformer import CausalLM, DecoderLayer
from harness.engine.schedule.config import EngineModelConfig
from harness.engine.schedule.sequence import Sequence
from harness.judge.dense_reference import DenseReference

TRANSFORMERS_BOUND = 1e-5
"""Relative L2. transformers computes norms, rotary embeddings and softmax in float32 whatever the
model's dtype.
"""
FORMULA_BOUND = 1e-10
LENGTH = 23


def canary(name: str, **changes: object) -> EngineModelConfig:
    """The shapes of a canary. transformers has 1e-6 in the norm of the latent, whatever the config
    says.
    """
    sizes = vars(load_config(FIXTURES / f"canary-{name}"))
    return EngineModelConfig(**(sizes | {"rms_norm_eps": 1e-6} | changes))


def reset(config: EngineModelConfig, seed: int = 3) -> CausalLM:
    model = CausalLM(config).double().reset_parameters(seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                # Weights of 1 would hide a norm without its weight.
                parameter.copy_(
                    torch.rand(parameter.shape, generator=generator, dtype=torch.float64) + 0.5
                )
    return model.eval().requires_grad_(False)


def prompt(config: EngineModelConfig) -> Tensor:
    return torch.randint(config.vocab_size, (1, LENGTH), generator=torch.Generator().manual_seed(5))


def dense_logits(model: CausalLM, tokens: Tensor) -> Tensor:
    """Logits [T, vocab] of the dense reference, as for a request with one prompt token."""
    sequence = Sequence(0, [*tokens[0].tolist(), 0], max_tokens=LENGTH)
    sequence.num_prompt_tokens = 1
    logits, _ = DenseReference(model, tie_margin=0.0).judged([sequence], {}, {})
    return logits


def distance(one: Tensor, other: Tensor) -> float:
    return float((one.double() - other.double()).norm() / other.double().norm())


def transformers_logits(model: CausalLM, tokens: Tensor, folder: Path) -> Tensor:
    """Logits of transformers' DeepseekV2 in float64, from the checkpoint that engines read."""
    transformers = pytest.importorskip("transformers")
    theirs = transformers.DeepseekV2ForCausalLM.from_pretrained(
        save(model, folder),
        dtype=torch.float64,
        attn_implementation="eager",
        experts_implementation="eager",
    )
    with torch.no_grad():
        logits: Tensor = theirs(tokens).logits[0]
    return logits


VARIANTS = {
    "as shipped": {},
    "rotary base 500000": {"rope_theta": 5e5},
    "rotary base 100": {"rope_theta": 100.0},
    "rotary width 2": {"qk_rope_head_dim": 2},
    "rotary width 128": {"qk_rope_head_dim": 128},
    "tied embeddings": {"tie_word_embeddings": True},
}
# transformers never divides the weights of the chosen experts by their sum, which is 1 if all are
# chosen.
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 128,
    "num_shared_experts": 2,
}


@pytest.mark.first(4)
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=list(VARIANTS))
@pytest.mark.parametrize("experts", [{}, EXPERTS], ids=["dense", "experts"])
def test_logits_are_those_of_transformers(changes, experts, tmp_path):
    model = reset(canary("moe" if experts else "mla", **experts, **changes))
    tokens = prompt(model.config)
    assert (
        distance(dense_logits(model, tokens), transformers_logits(model, tokens, tmp_path))
        < TRANSFORMERS_BOUND
    )


@pytest.mark.parametrize("wrong", ["halves", "no positions", "one position late", "another base"])
def test_transformers_disagree_with_a_wrong_rotary_embedding(wrong, tmp_path, monkeypatch):
    model = reset(canary("mla"))
    tokens = prompt(model.config)
    theirs = transformers_logits(model, tokens, tmp_path)
    monkeypatch.setattr("harness.engine.model.mla.rotate", WRONG_ROTATIONS[wrong])
    assert distance(dense_logits(model, tokens), theirs) > 100 * TRANSFORMERS_BOUND


def _turned(x: Tensor, angles: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)


def _angles(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    frequencies = torch.tensor(
        [theta ** (-2 * i / x.shape[-1]) for i in range(x.shape[-1] // 2)], dtype=torch.float64
    )
    return positions[..., None].double() * frequencies


def _in_halves(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    even, odd = x.unflatten(-1, (2, -1)).unbind(-2)
    angles = _angles(x, positions, theta)
    return torch.cat(
        (even * angles.cos() - odd * angles.sin(), odd * angles.cos() + even * angles.sin()), dim=-1
    )


WRONG_ROTATIONS = {
    "halves": _in_halves,
    "no positions": lambda x, positions, theta: x,
    # Attention sees distances only, so the keys alone are late.
    "one position late": lambda x, p, theta: _turned(
        x, _angles(x, p - (1 if p.ndim == 1 else 0), theta)
    ),
    "another base": lambda x, positions, theta: _turned(x, _angles(x, positions, theta * 2)),
}


# From the papers' formulas, token by token and head by head.


def norm_of(layer: RMSNorm, x: Tensor) -> Tensor:
    return torch.stack(
        [row / (row.dot(row) / len(row) + layer.eps) ** 0.5 * layer.weight for row in x]
    )


def mlp_of(layer: MLP, x: Tensor) -> Tensor:
    gate = x @ layer.gate_proj.weight.T
    return (gate / (1 + torch.exp(-gate)) * (x @ layer.up_proj.weight.T)) @ layer.down_proj.weight.T


def moe_of(layer: MoE, x: Tensor) -> Tensor:
    """Softmax over all experts, the k largest divided by their sum, and the shared expert."""
    out = []
    for row in x:
        shares = torch.exp(layer.gate.weight @ row)
        shares = shares / shares.sum()
        chosen = sorted(range(len(shares)), key=lambda i: -float(shares[i]))[
            : layer.num_experts_per_tok
        ]
        total = sum(shares[i] for i in chosen)
        mixed = torch.zeros_like(row)
        for i in chosen:
            gate = layer.experts.gate_proj[i] @ row
            hidden = gate / (1 + torch.exp(-gate)) * (layer.experts.up_proj[i] @ row)
            mixed += shares[i] / total * (layer.experts.down_proj[i] @ hidden)
        if layer.shared_experts is not None:
            mixed += mlp_of(layer.shared_experts, row[None])[0]
        out.append(mixed)
    return torch.stack(out)


def seen_by(layer: MLAAttention, x: Tensor, query: int) -> list[int]:
    """The tokens that one query sees."""
    past = list(range(query + 1))
    if layer.sliding_window is not None:
        return past[-layer.sliding_window :]
    if layer.indexer is None:
        return past
    indexer = layer.indexer
    q = (indexer.q_proj.weight @ x[query]).view(indexer.num_heads, -1)
    weights = indexer.weights_proj.weight @ x[query]
    scores = [
        sum(
            float(weights[h] * torch.relu(q[h] @ (indexer.k_proj.weight @ x[t])))
            for h in range(indexer.num_heads)
        )
        for t in past
    ]
    return sorted(past, key=lambda t: -scores[t])[: indexer.topk]


def mla_of(layer: MLAAttention, x: Tensor) -> Tensor:
    """DeepSeek-V2, equations 9 to 19, without compressed queries."""
    nope, rope, rank, heads = (
        layer.qk_nope_head_dim,
        layer.qk_rope_head_dim,
        layer.kv_lora_rank,
        layer.num_heads,
    )
    compressed = x @ layer.kv_a_proj_with_mqa.weight.T
    latent, key_rope = norm_of(layer.kv_a_layernorm, compressed[:, :rank]), compressed[:, rank:]
    queries = (x @ layer.q_proj.weight.T).view(len(x), heads, nope + rope)
    up = layer.kv_b_proj.weight.view(heads, nope + layer.v_head_dim, rank)
    positions = torch.arange(len(x))
    if layer.use_rope:
        key_rope = _turned(key_rope, _angles(key_rope, positions, layer.rope_theta))
    out = torch.zeros(len(x), heads, layer.v_head_dim, dtype=torch.float64)
    for head in range(heads):
        query_rope = queries[:, head, nope:]
        if layer.use_rope:
            query_rope = _turned(query_rope, _angles(query_rope, positions, layer.rope_theta))
        keys, values = latent @ up[head, :nope].T, latent @ up[head, nope:].T
        for query in range(len(x)):
            seen = seen_by(layer, x, query)
            scores = torch.stack(
                [
                    queries[query, head, :nope] @ keys[t] + query_rope[query] @ key_rope[t]
                    for t in seen
                ]
            )
            weights = torch.exp(scores / (nope + rope) ** 0.5)
            out[query, head] = (weights / weights.sum()) @ values[seen]
    return out.flatten(1) @ layer.o_proj.weight.T


def kda_of(layer: KimiDeltaAttention, x: Tensor) -> Tensor:
    """Kimi Linear, equation 1: S <- (I - beta k k^T) Diag(alpha) S + beta k v^T, and o = S^T q."""
    taps, dim = layer.conv_kernel_size, layer.head_dim

    def convolved(projection: Tensor, weight: Tensor) -> Tensor:
        inputs = F.pad((x @ projection.T).T[None], (taps - 1, 0))
        return F.silu(F.conv1d(inputs, weight, groups=len(weight))[0].T).view(
            len(x), layer.num_heads, dim
        )

    q = convolved(layer.q_proj.weight, layer.q_conv1d.weight)
    k = convolved(layer.k_proj.weight, layer.k_conv1d.weight)
    v = convolved(layer.v_proj.weight, layer.v_conv1d.weight)
    raw = x @ layer.f_a_proj.weight.T @ layer.f_b_proj.weight.T + layer.dt_bias
    rates = torch.log1p(torch.exp(raw)).view(len(x), layer.num_heads, dim)
    beta = torch.sigmoid(x @ layer.b_proj.weight.T)
    gate = torch.sigmoid(x @ layer.g_a_proj.weight.T @ layer.g_b_proj.weight.T).view(
        len(x), layer.num_heads, dim
    )
    out = torch.zeros(len(x), layer.num_heads, dim, dtype=torch.float64)
    for head in range(layer.num_heads):
        state = torch.zeros(dim, dim, dtype=torch.float64)
        for t in range(len(x)):
            key = k[t, head] / (k[t, head].square().sum() + 1e-6) ** 0.5
            query = q[t, head] / (q[t, head].square().sum() + 1e-6) ** 0.5 / dim**0.5
            alpha = torch.exp(-torch.exp(layer.A_log[0, 0, head, 0]) * rates[t, head])
            erase = torch.eye(dim, dtype=torch.float64) - beta[t, head] * torch.outer(key, key)
            state = erase @ torch.diag(alpha) @ state + beta[t, head] * torch.outer(key, v[t, head])
            row = state.T @ query
            row = row / (row.square().mean() + layer.o_norm.eps) ** 0.5 * layer.o_norm.weight
            out[t, head] = row * gate[t, head]
    return out.flatten(1) @ layer.o_proj.weight.T


def logits_of(model: CausalLM, tokens: Tensor) -> Tensor:
    """The whole model from the formulas: [T, vocab] float64."""
    x = model.embed_tokens.weight[tokens[0]]
    for layer in model.layers:
        assert isinstance(layer, DecoderLayer)
        normed, attention = norm_of(layer.input_layernorm, x), layer.self_attn
        x = x + (
            mla_of(attention, normed)
            if isinstance(attention, MLAAttention)
            else kda_of(attention, normed)
        )
        normed = norm_of(layer.post_attention_layernorm, x)
        x = x + (
            mlp_of(layer.mlp, normed) if isinstance(layer.mlp, MLP) else moe_of(layer.mlp, normed)
        )
    return norm_of(model.norm, x) @ model.lm_head.weight.T


# Two tokens with a score of exactly 0 are a tie. With sixteen heads there is none.
SPARSE = {"index_topk": 5, "index_num_heads": 16, "index_head_dim": 16}
FORMULAS = {
    "mla": canary("mla"),
    "hybrid, without positions": canary("hybrid"),
    "experts, weights divided by their sum": canary("moe"),
    "window": canary("mla", layer_types=("window", "mla", "window"), sliding_window=7),
    "sparse": canary("mla", layer_types=("sparse", "sparse", "mla"), **SPARSE),
}


@pytest.mark.parametrize("config", FORMULAS.values(), ids=list(FORMULAS))
def test_logits_are_those_of_the_papers_formulas(config):
    model = reset(config)
    tokens = prompt(config)
    ours, theirs = dense_logits(model, tokens), logits_of(model, tokens)
    assert distance(ours, theirs) < FORMULA_BOUND
    assert distance(model(tokens)[0], theirs) < FORMULA_BOUND


def test_the_formulas_disagree_with_a_decay_after_the_correction(monkeypatch):
    model = reset(canary("hybrid"))
    tokens = prompt(model.config)

    def late_decay(q, k, v, g, beta, state):
        later = torch.cat((torch.zeros_like(g[:, :1]), g[:, :-1]), dim=1)
        return recurrent(q, k, v, later, beta, state)

    theirs = logits_of(model, tokens)
    monkeypatch.setattr("harness.engine.model.kda.chunked", late_decay)
    assert distance(dense_logits(model, tokens), theirs) > 1e-4
