"""The sizes of a model, its Hugging Face `config.json`, and what the parameters of an engine case
mean. No torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from harness.core.catalog import KERNELS
from harness.core.cause_codes import Code, WhyNot
from harness.core.engine_params import EngineParams, conflicts
from harness.core.files import rows_beside
from harness.core.ops import PAGE_SIZE as PAGE_SIZE
from harness.core.serving_params import ModelSizes

NULL_BLOCK = 0
"""The block without an owner.

Unused block-table entries name it, and its state is never updated.
"""

KV_SCALE = 0.04
"""The default scale of an fp8 cache.

Latents have unit variance, and eleven standard deviations fit into e4m3's 448.
"""

Architecture = Literal["deepseek_v2", "kimi_linear"]
LayerType = Literal["mla", "kda", "window", "sparse"]

_CONSTANTS = rows_beside(__file__)
"""The keys of a `config.json` that are the same for all models of an architecture."""
_REQUIRED = ["vocab_size", "hidden_size", "intermediate_size"]
_REQUIRED += ["kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"]
_OPTIONAL = ["rope_theta", "rms_norm_eps", "max_position_embeddings", "tie_word_embeddings"]
_OPTIONAL += ["bos_token_id", "eos_token_id", "pad_token_id"]
"""Fields with the same name in a `config.json`. A missing optional one has the field's default."""
_SAME = [
    "vocab_size",
    "hidden_size",
    "num_heads",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "kv_lora_rank",
]
"""Fields with the same name in the parameters of a case."""


@dataclass(frozen=True)
class EngineModelConfig:
    """Sizes of one model, with the usual names (`kv_lora_rank`, `qk_rope_head_dim`, ...).

    The architecture is `deepseek_v2` (MLA in every layer, arXiv 2405.04434) or `kimi_linear` (Kimi
    Delta Attention, and MLA without RoPE, arXiv 2510.26692). Queries are never compressed. With
    `num_experts == 0` every layer has a dense MLP, otherwise routed experts and
    `num_shared_experts` shared ones. Raises ValueError for contradictory sizes.
    """

    architecture: Architecture
    vocab_size: int
    hidden_size: int
    num_layers: int
    layer_types: tuple[LayerType, ...]
    num_heads: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    kv_lora_rank: int
    intermediate_size: int
    rope_theta: float = 10000.0
    use_rope: bool = True
    rms_norm_eps: float = 1e-5
    kda_num_heads: int = 0
    kda_head_dim: int = 0
    conv_kernel_size: int = 4
    sliding_window: int = 0
    index_topk: int = 0
    index_num_heads: int = 2
    index_head_dim: int = 16
    num_experts: int = 0
    num_experts_per_tok: int = 0
    moe_intermediate_size: int = 0
    num_shared_experts: int = 1
    tie_word_embeddings: bool = False
    max_position_embeddings: int = 2048
    bos_token_id: int = 0
    eos_token_id: int = 0
    pad_token_id: int = 1

    def __post_init__(self) -> None:
        # The dataclass is frozen, and callers bring lists.
        object.__setattr__(self, "layer_types", tuple(self.layer_types))
        if self.architecture not in _CONSTANTS:
            raise ValueError(
                f"architecture must be one of {sorted(_CONSTANTS)}, got {self.architecture!r}"
            )
        if len(self.layer_types) != self.num_layers:
            raise ValueError(
                f"layer_types names {len(self.layer_types)} layers, num_layers is {self.num_layers}"
            )
        unknown = sorted(set(self.layer_types) - set(get_args(LayerType)))
        if unknown:
            raise ValueError(
                f"layer_types may hold 'mla', 'kda', 'window' and 'sparse', got {unknown}"
            )
        if "window" in self.layer_types and self.sliding_window < 1:
            raise ValueError("window layers need sliding_window of at least 1")
        if (
            "sparse" in self.layer_types
            and min(self.index_topk, self.index_num_heads, self.index_head_dim) < 1
        ):
            raise ValueError(
                "sparse layers need index_topk, index_num_heads and index_head_dim of at least 1"
            )
        has_kda = "kda" in self.layer_types
        if has_kda and self.architecture != "kimi_linear":
            raise ValueError(
                f"{self.architecture} has no kda layers; use architecture 'kimi_linear'"
            )
        if has_kda and min(self.kda_num_heads, self.kda_head_dim) < 1:
            raise ValueError("kda layers need kda_num_heads and kda_head_dim of at least 1")
        if self.architecture == "kimi_linear" and self.use_rope:
            raise ValueError("kimi_linear's MLA has no RoPE: use_rope must be False")
        if self.use_rope and self.qk_rope_head_dim % 2:
            raise ValueError(f"qk_rope_head_dim must be even for RoPE, got {self.qk_rope_head_dim}")
        if self.num_experts and not 1 <= self.num_experts_per_tok <= self.num_experts:
            raise ValueError(
                f"num_experts_per_tok must be 1..{self.num_experts}, got {self.num_experts_per_tok}"
            )
        if self.num_experts and self.moe_intermediate_size < 1:
            raise ValueError("num_experts needs moe_intermediate_size of at least 1")

    @property
    def latent_dim(self) -> int:
        """The width of a cache row: the latent and the shared key."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def qk_head_dim(self) -> int:
        """The width of one query or key head."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def is_hybrid(self) -> bool:
        """Whether some layer has a recurrent state."""
        return "kda" in self.layer_types

    def to_hf(self) -> dict[str, Any]:
        """The content of `config.json` for engines and transformers."""
        common = _CONSTANTS[self.architecture] | {
            "model_type": self.architecture,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_heads,
        }
        common |= {name: getattr(self, name) for name in (*_REQUIRED, *_OPTIONAL)}
        return common | (
            self._hf_deepseek() if self.architecture == "deepseek_v2" else self._hf_kimi()
        )

    def _hf_deepseek(self) -> dict[str, Any]:
        # A dense model has its first MoE layer past the end: transformers refuses null for
        # n_routed_experts, and engines need it to map weights.
        return {
            "n_routed_experts": self.num_experts or 1,
            "n_shared_experts": self.num_shared_experts,
            "num_experts_per_tok": self.num_experts_per_tok or 1,
            "moe_intermediate_size": self.moe_intermediate_size or self.intermediate_size,
            "first_k_dense_replace": 0 if self.num_experts else self.num_layers,
            # With one group for each expert, engines call their CUDA kernel for plain top-k. With
            # one group for all experts they would compile a function in every process.
            "n_group": self.num_experts or 1,
            "topk_group": self.num_experts or 1,
        }

    def _hf_kimi(self) -> dict[str, Any]:
        return {
            "mla_use_nope": not self.use_rope,
            "num_experts": self.num_experts or None,
            "num_experts_per_token": self.num_experts_per_tok or None,
            "num_shared_experts": self.num_shared_experts if self.num_experts else 0,
            "moe_intermediate_size": self.moe_intermediate_size or None,
            "linear_attn_config": {
                # Kimi Linear counts layers from one.
                "kda_layers": [i + 1 for i, kind in enumerate(self.layer_types) if kind == "kda"],
                "full_attn_layers": [
                    i + 1 for i, kind in enumerate(self.layer_types) if kind == "mla"
                ],
                "num_heads": self.kda_num_heads,
                "head_dim": self.kda_head_dim,
                "short_conv_kernel_size": self.conv_kernel_size,
            },
        }

    @classmethod
    def from_hf(cls, config: dict[str, Any]) -> EngineModelConfig:
        """Read a `config.json`. Raises ValueError for an unsupported architecture or feature."""
        architecture = config.get("model_type")
        if architecture not in _CONSTANTS:
            raise ValueError(
                f"model_type must be one of {sorted(_CONSTANTS)}, got {architecture!r}"
            )
        if config.get("q_lora_rank") is not None:
            raise ValueError(
                f"compressed queries are not supported: q_lora_rank is {config['q_lora_rank']}"
            )
        num_layers = config["num_hidden_layers"]
        kimi = architecture == "kimi_linear"
        linear = (config.get("linear_attn_config") or {}) if kimi else {}
        kda_layers = set(linear.get("kda_layers", ()))
        num_experts = (config.get("num_experts") if kimi else config.get("n_routed_experts")) or 0
        first_moe_layer = config.get("first_k_dense_replace", 0)
        if first_moe_layer >= num_layers:
            num_experts = 0
        elif num_experts and (first_moe_layer or config.get("moe_layer_freq", 1) != 1):
            raise ValueError("layers with and without experts in one model are not supported")
        per_token = "num_experts_per_token" if kimi else "num_experts_per_tok"
        # A file may leave out what equals the default of transformers. transformers 5 writes
        # `rope_theta` into `rope_parameters`, older releases beside the sizes.
        given = {"rms_norm_eps": 1e-6} | (config.get("rope_parameters") or {}) | config
        return cls(
            **{name: config[name] for name in _REQUIRED},
            **{name: given[name] for name in _OPTIONAL if name in given},
            architecture=architecture,
            num_layers=num_layers,
            layer_types=tuple("kda" if i + 1 in kda_layers else "mla" for i in range(num_layers)),
            num_heads=config["num_attention_heads"],
            use_rope=not (kimi and config.get("mla_use_nope", False)),
            kda_num_heads=linear.get("num_heads", 0),
            kda_head_dim=linear.get("head_dim", 0),
            conv_kernel_size=linear.get("short_conv_kernel_size", 4),
            num_experts=num_experts,
            num_experts_per_tok=config[per_token] if num_experts else 0,
            moe_intermediate_size=config["moe_intermediate_size"] if num_experts else 0,
            num_shared_experts=(
                config["num_shared_experts" if kimi else "n_shared_experts"] if num_experts else 1
            ),
        )


def num_pages(num_tokens: int) -> int:
    return -(-num_tokens // PAGE_SIZE)


def model_config(params: ModelSizes) -> EngineModelConfig:
    """The model of a case:

    DeepSeek-V2 when all layers are MLA, Kimi Linear (no RoPE) when some are KDA.
    """
    hybrid = "kda" in params.layers
    return EngineModelConfig(
        architecture="kimi_linear" if hybrid else "deepseek_v2",
        **{name: getattr(params, name) for name in _SAME},
        num_layers=len(params.layers),
        layer_types=params.layers,
        intermediate_size=2 * params.hidden_size,
        use_rope=not hybrid,
        kda_num_heads=params.num_heads if hybrid else 0,
        kda_head_dim=params.v_head_dim if hybrid else 0,
        sliding_window=params.window if "window" in params.layers else 0,
        index_topk=params.index_topk if "sparse" in params.layers else 0,
        num_experts=params.num_experts,
        num_experts_per_tok=min(params.num_experts_per_tok, params.num_experts),
        moe_intermediate_size=params.hidden_size if params.num_experts else 0,
    )


def why_not_together(config: EngineModelConfig, params: EngineParams) -> WhyNot | None:
    """Why the engine cannot serve this model with these parameters, in one sentence.

    None if it can.
    """
    conflict = next(conflicts(params, set(config.layer_types), config.num_experts), None)
    return WhyNot(conflict, Code.UNSUPPORTED) if conflict else _unwritten_rows(params)


def _unwritten_rows(params: EngineParams) -> WhyNot | None:
    """A scale that covers padding needs rows that the decode kernel writes."""
    written = KERNELS.get(f"mla_decode/{params.decode_kernel}").empty_rows == "identity"
    if params.amax_rows != "batch" or written or params.pad_keys or params.zero_fill_output:
        return None
    return WhyNot(
        f"amax_rows batch needs padded rows that are finite, and mla_decode/{params.decode_kernel}"
        " leaves rows of empty requests as they were: set pad_keys or zero_fill_output, or take a"
        " kernel that writes them",
        Code.UNSUPPORTED,
    )
