"""How a canary is made: the model's sizes and the numbers of its training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from canaries.tokenizer import EOS_TOKEN_ID, PAD_TOKEN_ID, VOCAB_SIZE
from harness.engine.schedule.config import EngineModelConfig


@dataclass(frozen=True)
class Recipe:
    """Numbers of one training run.

    The learning rate falls along a cosine over `steps`, or over the allowed time if that ends
    first. `latent_noise` is Gaussian noise on every cache row, relative to the row's root mean
    square. With it, rounding the cache to fp8 flips no answer.
    """

    steps: int = 2400
    batch_size: int = 450
    learning_rate: float = 2e-3
    warmup_steps: int = 50
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.98)
    gradient_clip: float = 1.0
    latent_noise: float = 0.05
    # Questions are sorted by length inside a window of this many batches: 1 pads most and mixes
    # best.
    length_window: int = 1
    # Half-lives of the KDA heads' memories in tokens, frozen; None lets the model learn them. A
    # model that learns them keeps whole questions in its recurrent states, and a wiped MLA cache
    # costs few answers.
    kda_half_lives: tuple[float, ...] | None = None
    check_every: int = 200


def default_recipe(architecture: str, num_experts: int = 0) -> Recipe:
    """The recipe of the canaries in `fixtures/`."""
    if num_experts:
        return Recipe(steps=2400, batch_size=256)
    if architecture == "kimi_linear":
        return Recipe(
            steps=2000, batch_size=225, length_window=3, kda_half_lives=(2.0, 4.0, 8.0, 16.0)
        )
    return Recipe()


def model_config(architecture: str, num_experts: int = 0) -> EngineModelConfig:
    """The canary's sizes.

    The MLA heads have DeepSeek's sizes, because serving kernels are built for them.

    With experts, every layer routes each token to two experts and has fewer heads, so that most
    weights are behind the router. Raises `ValueError` for an unknown architecture, and for experts
    in kimi_linear.
    """
    mla: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 256,
        "num_heads": 8,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "kv_lora_rank": 512,
        "intermediate_size": 768,
        "max_position_embeddings": 2048,
        "bos_token_id": EOS_TOKEN_ID,
        "eos_token_id": EOS_TOKEN_ID,
        "pad_token_id": PAD_TOKEN_ID,
    }
    if num_experts:
        if architecture != "deepseek_v2":
            raise ValueError(
                f"--experts goes with --architecture deepseek_v2, not with {architecture}"
            )
        if not 2 <= num_experts <= 64 or num_experts & (num_experts - 1):
            raise ValueError(f"--experts must be a power of two from 2 to 64, got {num_experts}")
        experts = {
            "num_experts": num_experts,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 128,
        }
        mla |= experts | {"num_heads": 4}
    if architecture == "deepseek_v2":
        return EngineModelConfig(
            architecture="deepseek_v2", num_layers=3, layer_types=("mla",) * 3, **mla
        )
    if architecture == "kimi_linear":
        # With four heads of 64, the state of a request has the size of 64 rows of the MLA cache.
        return EngineModelConfig(
            architecture="kimi_linear",
            num_layers=4,
            layer_types=("kda", "mla", "kda", "kda"),
            use_rope=False,
            kda_num_heads=4,
            kda_head_dim=64,
            **mla,
        )
    raise ValueError(f"architecture must be 'deepseek_v2' or 'kimi_linear', got {architecture!r}")
