"""A torch module of a whole layer, adapted to the call of `mla_layer`.

No torch is imported here before a call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Function = Callable[..., Any]


def layer(function: Function) -> Function:
    """`f(hidden_size=, num_heads=, q_lora_rank=, kv_lora_rank=, qk_nope_head_dim=,
    qk_rope_head_dim=, v_head_dim=, rms_norm_eps=)` makes a `torch.nn.Module`, a class for one.

    Its parameters have the names of DeepSeek-V3's attention in huggingface/transformers:
    `q_a_proj`, `q_a_layernorm`, `q_b_proj`, `kv_a_proj_with_mqa`, `kv_a_layernorm`, `kv_b_proj` and
    `o_proj`. `module(hidden_states, cos, sin)` gets hidden_states [B, S, U], cos and sin [S, E / 2]
    float32, and returns [B, S, U]. It is causal by itself, and gets no mask and no lengths, as
    padding stands behind the prompts.
    """

    def adapted(
        hidden: Any,
        seq_lens: Any,
        cos: Any,
        sin: Any,
        q_a_proj: Any,
        q_a_layernorm: Any,
        q_b_proj: Any,
        kv_a_proj: Any,
        kv_a_layernorm: Any,
        kv_b_proj: Any,
        o_proj: Any,
        *,
        num_heads: int,
        scale: float,
        epsilon: float,
    ) -> Any:
        import torch

        rank = len(kv_a_layernorm)
        rope = kv_a_proj.shape[0] - rank
        nope = q_b_proj.shape[0] // num_heads - rope
        # A module draws its first weights, which is no random answer: they are replaced below.
        with torch.random.fork_rng():
            module = function(
                hidden_size=hidden.shape[-1],
                num_heads=num_heads,
                q_lora_rank=len(q_a_layernorm),
                kv_lora_rank=rank,
                qk_nope_head_dim=nope,
                qk_rope_head_dim=rope,
                v_head_dim=kv_b_proj.shape[0] // num_heads - nope,
                rms_norm_eps=epsilon,
            ).to(hidden.device)
        module.load_state_dict(
            {
                "q_a_proj.weight": q_a_proj,
                "q_a_layernorm.weight": q_a_layernorm,
                "q_b_proj.weight": q_b_proj,
                "kv_a_proj_with_mqa.weight": kv_a_proj,
                "kv_a_layernorm.weight": kv_a_layernorm,
                "kv_b_proj.weight": kv_b_proj,
                "o_proj.weight": o_proj,
            }
        )
        with torch.no_grad():
            return module(hidden, cos, sin)

    adapted.__name__ = adapted.__qualname__ = str(getattr(function, "__qualname__", "kernel"))
    adapted.__doc__ = function.__doc__
    return adapted


STYLES: dict[str, Callable[[Function], Function]] = {"layer": layer}
"""Name of a style -> its adapter."""
