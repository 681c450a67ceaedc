"""`DeepseekV3Attention` of transformers, which is installed."""

import torch
from transformers.models.deepseek_v3 import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention

from harness import kernel


class Layer(DeepseekV3Attention):
    """The layer with the call of the style: its angles stand twice in a row."""

    def forward(self, hidden, cos, sin):
        angles = tuple(torch.cat((one, one), dim=-1)[None] for one in (cos, sin))
        return super().forward(hidden, angles, self.mask(hidden))[0]

    def mask(self, hidden):
        if self.config._attn_implementation == "sdpa":
            return None
        least = torch.finfo(hidden.dtype).min
        return torch.full((hidden.shape[1],) * 2, least, device=hidden.device).triu(1)[None, None]


def made(implementation, module=Layer, *, num_heads, rms_norm_eps, **sizes):
    config = DeepseekV3Config(num_attention_heads=num_heads, num_key_value_heads=num_heads, **sizes)
    config._attn_implementation = implementation
    return module(config, layer_idx=0)


@kernel(op="mla_layer", name="transformers-sdpa", style="layer")
def sdpa(**sizes):
    return made("sdpa", **sizes)


@kernel(op="mla_layer", name="transformers-eager", style="layer")
def eager(**sizes):
    return made("eager", **sizes)


class FinitePadding(Layer):
    """The layer behind an embedding, which gives padded tokens plain numbers too."""

    def forward(self, hidden, cos, sin):
        return super().forward(hidden.nan_to_num(0, 0, 0).clamp(-9, 9), cos, sin)


@kernel(op="mla_layer", name="transformers-finite", style="layer")
def finite_padding(**sizes):
    return made("sdpa", FinitePadding, **sizes)
