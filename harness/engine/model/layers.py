"""The layers of a block that are not attention:

RMS norm, gated MLP, routed experts; and rotary position embedding.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from harness.engine.schedule.config import EngineModelConfig


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of norms, gates and recurrences: float32, or float64 for a float64 model."""
    return torch.promote_types(dtype, torch.float32)


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dimension (arXiv 1910.07467), in the input's dtype."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """x [..., dim] -> the same shape and dtype; squares are averaged in float32 or wider."""
        # The sum of squares of a bfloat16 row would lose the small elements beside the large ones.
        wide = x.to(compute_dtype(x.dtype))
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * self.weight).to(x.dtype)


class MLP(nn.Module):
    """SwiGLU: `down(silu(gate(x)) * up(x))`, x: [..., hidden]."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., hidden] in the weights' dtype, such as float32 -> the same shape and dtype."""
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


def rotate(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Rotary position embedding (arXiv 2104.09864), interleaved as DeepSeek's
    (`is_neox_style=False`).

    x: [..., T, *, E] with even E. positions: [T] or [T, 1] int64, tokens from the beginning, which
    broadcast against `x.shape[:-1]`. Returns the same shape and dtype; angles and products are
    float32 or wider.
    """
    wide = compute_dtype(x.dtype)
    dim = x.shape[-1]
    exponents = torch.arange(0, dim, 2, device=x.device, dtype=wide) / dim
    angles = positions.to(wide).unsqueeze(-1) * theta**-exponents
    cos = angles.cos()
    sin = angles.sin()
    # Interleaved: elements 2i and 2i + 1 are one pair. The NeoX layout pairs i with i + E / 2.
    even = x[..., 0::2].to(wide)
    odd = x[..., 1::2].to(wide)
    return (
        torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1)
        .flatten(-2)
        .to(x.dtype)
    )


IdsTransform = Callable[[Tensor], Tensor]


class ExpertRouter(nn.Module):
    """Scores every expert for every token: `weight` [X, hidden], X = num_experts."""

    def __init__(self, hidden_size: int, num_experts: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_experts, hidden_size))

    def forward(self, x: Tensor) -> Tensor:
        """x: [T, hidden] float32 or bfloat16 -> logits [T, X] in x's dtype."""
        return F.linear(x, self.weight)


class Experts(nn.Module):
    """X gated MLPs with stacked weights: gate_proj and up_proj [X, I, hidden], down_proj [X,
    hidden, I].
    """

    def __init__(self, num_experts: int, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Parameter(torch.empty(num_experts, intermediate_size, hidden_size))
        self.up_proj = nn.Parameter(torch.empty(num_experts, intermediate_size, hidden_size))
        self.down_proj = nn.Parameter(torch.empty(num_experts, hidden_size, intermediate_size))

    def forward(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        """Apply the given experts: x [T, hidden], ids [T, k] int32, weights [T, k] -> [T, hidden].

        `ids` must lie in 0..X-1.
        """
        out = torch.zeros_like(x)
        # One choice of all tokens at a time: the gathered weights of all k choices together would
        # take k times the memory.
        for slot in range(ids.shape[1]):
            chosen = ids[:, slot]
            gate = torch.bmm(self.gate_proj.index_select(0, chosen), x.unsqueeze(-1))
            up = torch.bmm(self.up_proj.index_select(0, chosen), x.unsqueeze(-1))
            down = torch.bmm(self.down_proj.index_select(0, chosen), F.silu(gate) * up).squeeze(-1)
            out = out + down * weights[:, slot : slot + 1].to(x.dtype)
        return out

    def every(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        """The same sum [T, hidden], with every expert applied to every token: it gathers no
        weights, to save memory.

        x [T, hidden], ids [T, k] int32, weights [T, k] float32.
        """
        share = torch.zeros(
            x.shape[0], self.gate_proj.shape[0], dtype=weights.dtype, device=x.device
        )
        share = share.scatter_add(1, ids.long(), weights).to(x.dtype)
        gate = torch.einsum("td,xid->txi", x, self.gate_proj)
        up = torch.einsum("td,xid->txi", x, self.up_proj)
        return torch.einsum("txi,xdi->td", F.silu(gate) * up * share.unsqueeze(-1), self.down_proj)


def route(logits: Tensor, num_experts_per_tok: int) -> tuple[Tensor, Tensor]:
    """Renormalised top-k of the softmax: logits [T, X] -> ids [T, k] int32, weights [T, k] in the
    compute dtype.
    """
    scores = logits.to(compute_dtype(logits.dtype)).softmax(dim=-1)
    # The weights of the chosen experts sum to 1, as `norm_topk_prob` of DeepSeek's configs asks.
    weights, ids = scores.topk(num_experts_per_tok, dim=-1)
    return ids.to(torch.int32), weights / weights.sum(-1, keepdim=True)


class MoE(nn.Module):
    """Routed experts plus shared ones: `gate` -> `route` -> `combine`.

    `ids_transform`, if set, changes the expert ids [T, k] before use: a canary measures the cost of
    wrong ids.
    """

    def __init__(self, config: EngineModelConfig) -> None:
        super().__init__()
        self.num_experts_per_tok = config.num_experts_per_tok
        self.ids_transform: IdsTransform | None = None
        self.gate = ExpertRouter(config.hidden_size, config.num_experts)
        self.experts = Experts(config.num_experts, config.hidden_size, config.moe_intermediate_size)
        self.shared_experts: MLP | None = None
        if config.num_shared_experts:
            self.shared_experts = MLP(
                config.hidden_size, config.moe_intermediate_size * config.num_shared_experts
            )

    def combine(self, x: Tensor, ids: Tensor, weights: Tensor, *, gathers: bool = True) -> Tensor:
        """x: [T, hidden], ids: [T, k] int32, weights: [T, k] -> [T, hidden], routed plus shared.

        Without `gathers` every expert is applied to every token: for the many tokens of whole
        sequences that takes a fifth of the time on a CPU. The sum is in another order.
        """
        # In training the weights that are gathered for each token would be kept for the backward
        # pass.
        apply = self.experts if gathers and not weights.requires_grad else self.experts.every
        out: Tensor = apply(x, ids, weights)
        if self.shared_experts is not None:
            out = out + self.shared_experts(x)
        return out

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., hidden] in the weights' dtype, such as float32 -> the same shape and dtype."""
        tokens = x.flatten(0, -2)
        ids, weights = route(self.gate(tokens), self.num_experts_per_tok)
        if self.ids_transform is not None:
            ids = self.ids_transform(ids)
        return self.combine(tokens, ids, weights).reshape(x.shape)
