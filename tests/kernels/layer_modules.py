"""A right module of a whole MLA layer and wrong ones, for the tests."""

import torch
from torch import nn

from harness import kernel


class Layer(nn.Module):
    """The layer of DeepSeek-V2, causal, with parameters of the names of DeepSeek-V3."""

    def __init__(
        self,
        hidden_size,
        num_heads,
        q_lora_rank,
        kv_lora_rank,
        qk_nope_head_dim,
        qk_rope_head_dim,
        v_head_dim,
        rms_norm_eps,
    ):
        super().__init__()
        self.sizes = (num_heads, kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim)
        keys = qk_nope_head_dim + qk_rope_head_dim
        values = qk_nope_head_dim + v_head_dim
        self.q_a_proj = nn.Linear(hidden_size, q_lora_rank, bias=False)
        self.q_a_layernorm = nn.RMSNorm(q_lora_rank, rms_norm_eps)
        self.q_b_proj = nn.Linear(q_lora_rank, num_heads * keys, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(
            hidden_size, kv_lora_rank + qk_rope_head_dim, bias=False
        )
        self.kv_a_layernorm = nn.RMSNorm(kv_lora_rank, rms_norm_eps)
        self.kv_b_proj = nn.Linear(kv_lora_rank, num_heads * values, bias=False)
        self.o_proj = nn.Linear(num_heads * v_head_dim, hidden_size, bias=False)

    def forward(self, hidden_states, cos, sin):
        # Each row sees the tokens up to itself alone, so padding behind them does not count.
        rows = [
            self.last(hidden_states[:, : t + 1], cos, sin) for t in range(hidden_states.shape[1])
        ]
        return torch.stack(rows, dim=1)

    def last(self, hidden, cos, sin):
        """The last token of hidden [B, t, U], beside all of them: [B, U]."""
        heads, rank, nope, _ = self.sizes
        count = hidden.shape[1]
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(hidden[:, -1])))
        q = q.unflatten(-1, (heads, -1))
        q_rope = self.turned(q[..., nope:], cos[count - 1], sin[count - 1])
        latents = self.kv_a_proj_with_mqa(hidden)
        k_rope = self.turned(latents[..., rank:], cos[:count], sin[:count])
        keys = self.kv_b_proj(self.kv_a_layernorm(latents[..., :rank])).unflatten(-1, (heads, -1))
        scores = torch.einsum("bhd,bthd->bht", q[..., :nope], keys[..., :nope])
        scores = (scores + torch.einsum("bhd,btd->bht", q_rope, k_rope)) * q.shape[-1] ** -0.5
        attended = torch.einsum("bht,bthv->bhv", self.weights(scores), keys[..., nope:])
        return self.o_proj(attended.flatten(1))

    def weights(self, scores):
        return scores.softmax(-1)

    def turned(self, x, cos, sin):
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


class SkipsAKey(Layer):
    """Leaves the first key out."""

    def weights(self, scores):
        if scores.shape[-1] > 1:
            scores = scores.index_fill(-1, torch.tensor([0]), float("-inf"))
        return scores.softmax(-1)


class HalfSplitRope(Layer):
    """Turns element j with element j + E / 2."""

    def turned(self, x, cos, sin):
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, first * sin + second * cos), -1)


class NoNorm(Layer):
    """Leaves the norm of the latent out."""

    def last(self, hidden, cos, sin):
        self.kv_a_layernorm.forward = lambda latents: latents
        return super().last(hidden, cos, sin)


def right(**sizes):
    return Layer(**sizes)


def wrong(**sizes):
    return SkipsAKey(**sizes)


def half_split(**sizes):
    return HalfSplitRope(**sizes)


def no_norm(**sizes):
    return NoNorm(**sizes)


for made in (right, wrong, half_split, no_norm):
    kernel(op="mla_layer", name=made.__name__.replace("_", "-"), style="layer")(made)
