"""The model: embedding, decoder layers, final norm, output head."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from harness.engine.model.kda import KimiDeltaAttention
from harness.engine.model.layers import MLP, MoE, RMSNorm
from harness.engine.model.mla import MLAAttention
from harness.engine.schedule.config import EngineModelConfig, LayerType


class DecoderLayer(nn.Module):
    """Pre-norm block: `x + self_attn(norm(x))`, then `x + mlp(norm(x))`."""

    def __init__(self, config: EngineModelConfig, layer_type: LayerType) -> None:
        super().__init__()
        self.layer_type = layer_type
        self.self_attn: MLAAttention | KimiDeltaAttention = (
            KimiDeltaAttention(config) if layer_type == "kda" else MLAAttention(config, layer_type)
        )
        self.mlp: MLP | MoE = (
            MoE(config) if config.num_experts else MLP(config.hidden_size, config.intermediate_size)
        )
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """x: [B, T, hidden] in the weights' dtype, positions: [T] int64 -> [B, T, hidden], for
        whole sequences.
        """
        normed = self.input_layernorm(x)
        if isinstance(self.self_attn, MLAAttention):
            x = x + self.self_attn(normed, positions)
        else:
            x = x + self.self_attn(normed)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class CausalLM(nn.Module):
    """A DeepSeek-V2 or Kimi Linear language model.

    Its weights are undefined until they are reset or loaded.
    """

    def __init__(self, config: EngineModelConfig) -> None:
        super().__init__()
        self.config = config
        # Its weight is given, as torch would draw one: of a model without memory by a module that
        # takes a second to import.
        self.embed_tokens = nn.Embedding(
            config.vocab_size,
            config.hidden_size,
            _weight=torch.empty(config.vocab_size, config.hidden_size),
        )
        self.layers = nn.ModuleList(DecoderLayer(config, kind) for kind in config.layer_types)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.embed_tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: [B, T] int64 -> logits [B, T, vocab_size] in the weights' dtype."""
        return self.compute_logits(self.hidden_states(tokens))

    def hidden_states(self, tokens: Tensor) -> Tensor:
        """tokens: [B, T] int64 -> [B, T, hidden], before the final norm."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x: Tensor = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, positions)
        return x

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """hidden: [..., hidden] before the final norm -> logits [..., vocab_size] float32 in the
        reference engine.
        """
        logits: Tensor = self.lm_head(self.norm(hidden))
        return logits

    def mla_layers(self) -> list[MLAAttention]:
        return [
            layer.self_attn for layer in self.layers if isinstance(layer.self_attn, MLAAttention)
        ]

    @torch.no_grad()
    def reset_parameters(self, seed: int, logit_std: float = 4.0) -> CausalLM:
        """Fill all weights from `seed`, equal on all devices and, up to rounding, in all dtypes.

        Returns self.

        Matrices keep the scale of activations. Logits have a standard deviation near `logit_std`,
        so that the largest one stands clear and a wrong value shows.
        """
        generator = torch.Generator().manual_seed(seed)

        def normal(parameter: Tensor, std: float) -> None:
            """Fill a parameter of any shape."""
            # In float32 and on the CPU whatever the model is: generators differ by dtype and by
            # device.
            values = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
            parameter.copy_(values * std)

        for name, parameter in self.named_parameters():
            if name.endswith("norm.weight"):
                parameter.fill_(1.0)
            elif name.endswith("A_log"):
                rates = torch.rand(parameter.shape, generator=generator) * 3.0 + 1.0
                parameter.copy_(rates.log())
            elif name.endswith("dt_bias"):
                # Time steps from 0.001 to 0.1 on a log scale, as in Mamba (arXiv 2312.00752).
                steps = torch.exp(torch.rand(parameter.shape, generator=generator) * 4.6 - 6.9)
                # The inverse of the softplus that the gates apply.
                parameter.copy_(steps.expm1().log())
            elif name == "embed_tokens.weight":
                tied_std = logit_std * self.config.hidden_size**-0.5
                normal(parameter, tied_std if self.config.tie_word_embeddings else 1.0)
            elif name == "lm_head.weight":
                normal(parameter, logit_std * parameter.shape[-1] ** -0.5)
            else:
                normal(parameter, parameter.shape[-1] ** -0.5)
        return self
