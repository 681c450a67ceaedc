"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434), in parts, so that an engine can page
its cache.

A cache row is `kv_c` (the normalised latent, R = kv_lora_rank) followed by `k_pe` (the key part
that all heads share, E = qk_rope_head_dim). Attention either expands the latents into keys and
values of every head, or absorbs the expansion into the query (W_UK) and the output (W_UV) and
attends to the latents. Both give the same result.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from harness.core.seams import seam
from harness.engine.model.layers import RMSNorm, rotate
from harness.engine.schedule.config import EngineModelConfig, LayerType


class Indexer(nn.Module):
    """The indexer of sparse attention (DeepSeek-V3.2): sum over X index heads of weight *
    relu(query . key).

    X = index_num_heads, I = index_head_dim. All heads share one key a token, which an engine
    caches.
    """

    def __init__(self, config: EngineModelConfig) -> None:
        super().__init__()
        self.num_heads = config.index_num_heads
        self.head_dim = config.index_head_dim
        self.topk = config.index_topk
        self.q_proj = nn.Linear(config.hidden_size, self.num_heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, self.head_dim, bias=False)
        self.weights_proj = nn.Linear(config.hidden_size, self.num_heads, bias=False)

    def keys(self, x: Tensor) -> Tensor:
        """x: [..., T, hidden] -> index keys [..., T, I], in the weights' dtype, such as float32."""
        keys: Tensor = self.k_proj(x)
        return keys

    def scores(self, x: Tensor, keys: Tensor) -> Tensor:
        """x: [..., T, hidden], keys: [..., C, I] or, different for each query, [..., T, C, I] ->
        [..., T, C].

        In the weights' dtype, such as float32. No score is masked: the caller knows the future.
        """
        q, weights = self.queries(x)
        # If all queries see the same keys, the heads of all tokens are the rows of one product.
        products = ((q if keys.ndim > x.ndim else q.flatten(-3, -2)) @ keys.transpose(-1, -2)).view(
            *q.shape[:-1], -1
        )
        return (products.relu() * weights.unsqueeze(-1)).sum(-2)

    def queries(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x: [..., T, hidden] -> queries [..., T, X, I], and the weights of their heads [..., T,
        X], scale included.

        In the weights' dtype, such as float32.
        """
        return self.q_proj(x).unflatten(-1, (self.num_heads, -1)), self.weights_proj(
            x
        ) * self.head_dim**-0.5


def absorbed_parts(weight: Tensor) -> tuple[Tensor, Tensor]:
    """`weight` by its scale, and the scale [1].

    It is a power of two, so that products with both keep their bits.

    Both are float32 in the reference engine, and a shape [H, nope + V, R] stays.
    """
    scale = weight.abs().amax().log2().ceil().exp2().reshape(1)
    return weight / scale, scale


class Adapters:
    """The low-rank pairs of adapters on one layer's `kv_b_proj`, by slot.

    A pair is B [S, H, nope + V, K] times A [S, K, R]. Graphs hold these buffers. Slot 0 is zeros:
    no adapter.
    """

    RANK = 4

    def __init__(self, num_slots: int, weight: Tensor, num_heads: int) -> None:
        rows, columns = weight.shape
        self.a = weight.new_zeros(num_slots, self.RANK, columns)
        self.b = weight.new_zeros(num_slots, num_heads, rows // num_heads, self.RANK)

    def load(self, slot: int, adapter: int, layer: int) -> None:
        """Write an adapter into a slot, in place.

        Adapter 0 is zeros, others are drawn from their number.
        """
        if not adapter:
            self.a[slot] = 0.0
            self.b[slot] = 0.0
            return
        generator = torch.Generator().manual_seed(1000 * adapter + layer)
        for held in (self.a[slot], self.b[slot]):
            held.copy_(
                torch.randn(held.shape, generator=generator)
                * self.RANK**-0.5
                * held.shape[-1] ** -0.25
            )

    def of_prefill(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """A [T, K, R] and B [T, H, nope + V, K] float32 of each token, for keys and values that are
        expanded.

        slots [T] int64 are the adapters of the tokens.
        """
        return self.a[slots], self.b[slots]

    @seam("adapter.absorbed-without-pair")
    def of_absorbed(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """The pairs of slots [T] int64 for absorbed projections, which never call `kv_b_proj` and
        its adapter (vllm-project/vllm#48974).

        Shapes and type (float32) are those of `of_prefill`.
        """
        return self.a[slots], self.b[slots]


CacheTransform = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class MLAAttention(nn.Module):
    """One MLA layer. Parameters have the names of Hugging Face's DeepSeek-V2.

    T tokens, H heads, R = kv_lora_rank, E = qk_rope_head_dim, V = v_head_dim. Results have the
    dtype of the input. An engine that changes its weights keeps `absorbed` [H, nope + V, R], made
    of `kv_b_proj` after loading, and its scale [1]; `adapters` add to `kv_b_proj`, by token.
    `forward` applies `cache_transform`, if set, to `(kv_c, k_pe)`: rounding to fp8, or noise in
    training.

    A query of an `mla` layer sees all tokens up to its own, of a `window` layer the last
    `sliding_window` of them, of a `sparse` layer the `index_topk` of them with the highest scores
    of `indexer`.
    """

    def __init__(self, config: EngineModelConfig, layer_type: LayerType = "mla") -> None:
        super().__init__()
        self.layer_type = layer_type
        self.sliding_window = config.sliding_window if layer_type == "window" else None
        self.indexer = Indexer(config) if layer_type == "sparse" else None
        self.num_heads = config.num_heads
        self.qk_nope_head_dim = config.qk_nope_head_dim
        self.qk_rope_head_dim = config.qk_rope_head_dim
        self.v_head_dim = config.v_head_dim
        self.kv_lora_rank = config.kv_lora_rank
        self.use_rope = config.use_rope
        self.rope_theta = config.rope_theta
        self.cache_transform: CacheTransform | None = None
        self.absorbed: Tensor | None = None
        self.absorbed_scale: Tensor | None = None
        self.adapters: Adapters | None = None
        hidden = config.hidden_size
        heads = config.num_heads
        self.q_proj = nn.Linear(hidden, heads * config.qk_head_dim, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(hidden, config.latent_dim, bias=False)
        self.kv_a_layernorm = RMSNorm(config.kv_lora_rank, config.rms_norm_eps)
        self.kv_b_proj = nn.Linear(
            config.kv_lora_rank, heads * (config.qk_nope_head_dim + config.v_head_dim), bias=False
        )
        self.o_proj = nn.Linear(heads * config.v_head_dim, hidden, bias=False)

    @property
    def softmax_scale(self) -> float:
        """The factor of scores, from the width of an expanded key, in the absorbed form too."""
        # An absorbed query is wider, but its scores are those of the expanded form.
        return float((self.qk_nope_head_dim + self.qk_rope_head_dim) ** -0.5)

    def project_q(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """x: [..., T, hidden], positions: [T] int -> q_nope [..., T, H, nope], q_pe [..., T, H, E]
        roped.

        q has the weights' dtype, such as float32.
        """
        q = self.q_proj(x).unflatten(-1, (self.num_heads, -1))
        q_nope, q_pe = q.split((self.qk_nope_head_dim, self.qk_rope_head_dim), dim=-1)
        if self.use_rope:
            q_pe = rotate(q_pe, positions.unsqueeze(-1), self.rope_theta)
        return q_nope, q_pe

    def project_kv(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """x: [..., T, hidden], positions: [T] int -> kv_c [..., T, R] normalised, k_pe [..., T, E]
        roped.

        Both have the weights' dtype, such as float32; the cache may store them in another.
        """
        kv_c, k_pe = self.kv_a_proj_with_mqa(x).split(
            (self.kv_lora_rank, self.qk_rope_head_dim), dim=-1
        )
        if self.use_rope:
            # Before it is stored: a cached key is not touched again.
            k_pe = rotate(k_pe, positions, self.rope_theta)
        # Only the latent is normalised, as in DeepSeek-V2.
        return self.kv_a_layernorm(kv_c), k_pe

    def up_projections(self) -> tuple[Tensor, Tensor]:
        """W_UK [H, nope, R] and W_UV [H, V, R]: views of `absorbed`, or of `kv_b_proj.weight`
        without it.
        """
        weight = self.absorbed
        if weight is None:
            weight = self.kv_b_proj.weight.view(self.num_heads, -1, self.kv_lora_rank)
        return weight[:, : self.qk_nope_head_dim], weight[:, self.qk_nope_head_dim :]

    def absorb_q(self, q_nope: Tensor, slots: Tensor | None = None) -> Tensor:
        """q_nope: [..., T, H, nope] -> [..., T, H, R] float32, the query for latents; `slots` [T]
        int64 are adapters.
        """
        out = self._scaled(torch.einsum("...hn,hnr->...hr", q_nope, self.up_projections()[0]))
        if self.adapters is None or slots is None:
            return out
        a, b = self.adapters.of_absorbed(slots)
        return out + torch.einsum("thn,thnk,tkr->thr", q_nope, b[:, :, : self.qk_nope_head_dim], a)

    def expand_v(self, latent_out: Tensor, slots: Tensor | None = None) -> Tensor:
        """latent_out: [..., T, H, R] float32, the attention output in the latent ->
        values [..., T, H, V]; `slots` [T] int64 are adapters.
        """
        out = self._scaled(torch.einsum("...hr,hvr->...hv", latent_out, self.up_projections()[1]))
        if self.adapters is None or slots is None:
            return out
        a, b = self.adapters.of_absorbed(slots)
        return out + torch.einsum(
            "thr,tkr,thvk->thv", latent_out, a, b[:, :, self.qk_nope_head_dim :]
        )

    def _scaled(self, product: Tensor) -> Tensor:
        return product if self.absorbed_scale is None else product * self.absorbed_scale

    def expand_kv(
        self, kv_c: Tensor, k_pe: Tensor, slots: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """kv_c: [..., C, R], k_pe: [..., C, E] -> k [..., C, H, nope + E], v [..., C, H, V], all
        float32; `slots` [C] int64 are adapters.
        """
        kv = self.kv_b_proj(kv_c).unflatten(-1, (self.num_heads, -1))
        if self.adapters is not None and slots is not None:
            a, b = self.adapters.of_prefill(slots)
            kv = kv + torch.einsum("cr,ckr,chxk->chx", kv_c, a, b)
        k_nope, v = kv.split((self.qk_nope_head_dim, self.v_head_dim), dim=-1)
        shared = k_pe.unsqueeze(-2).expand(*k_nope.shape[:-1], -1)
        return torch.cat((k_nope, shared), dim=-1), v

    def project_out(self, v: Tensor) -> Tensor:
        """v: [..., T, H, V] -> [..., T, hidden], in the weights' dtype, such as float32."""
        out: Tensor = self.o_proj(v.flatten(-2))
        return out

    def visible(self, x: Tensor) -> Tensor | None:
        """The tokens that each query sees, [T, T] or [B, T, T] bool for x [B, T, hidden]; None for
        plain causal.
        """
        if self.layer_type == "mla":
            return None
        causal = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
        if self.indexer is None:
            assert self.sliding_window is not None
            return causal.triu(1 - self.sliding_window)
        scores = self.indexer.scores(x, self.indexer.keys(x)).masked_fill(~causal, -torch.inf)
        # An early query has fewer tokens than are chosen. It gets some of the future too, and the
        # mask takes them out again.
        chosen = scores.topk(min(self.indexer.topk, x.shape[1]), dim=-1).indices
        return torch.zeros_like(scores, dtype=torch.bool).scatter(-1, chosen, True) & causal

    def forward(self, x: Tensor, positions: Tensor, visible: Tensor | None = None) -> Tensor:
        """Dense causal attention over whole sequences in the expanded form: the reference of every
        paged path.

        x: [B, T, hidden], positions: [T] int -> [B, T, hidden]. Differentiable. `visible` [T, T] or
        [B, T, T] bool replaces the layer's own choice of tokens.
        """
        q = torch.cat(self.project_q(x, positions), dim=-1)
        kv_c, k_pe = self.project_kv(x, positions)
        if self.cache_transform is not None:
            kv_c, k_pe = self.cache_transform(kv_c, k_pe)
        k, v = self.expand_kv(kv_c, k_pe)
        visible = self.visible(x) if visible is None else visible
        mask = visible.unsqueeze(1) if visible is not None and visible.ndim == 3 else visible
        q = q.transpose(1, 2)
        k = k.transpose(1, 2)
        v = v.transpose(1, 2)
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=self.softmax_scale
        )
        return self.project_out(out.transpose(1, 2))
