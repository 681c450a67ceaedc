"""A checkpoint with random weights of an architecture, and its truth by transformers: a log
probability for each token.

The truth is computed in float32 on a CPU. Beside it stands how far rounding moves each token. The
model runs again with noise of the size of a rounding at the output of each module, `SAMPLES` times:
once with the decisions of the truth (experts, tokens of an indexer), once with its own. See
docs/tolerances.md.
"""

from __future__ import annotations

import json
import lzma
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from canaries import block_fp8, recall, tokenizer
from canaries.canary_requests import RandomCanary
from canaries.tokenizer import EOS_TOKEN, PAD_TOKEN
from harness.core.errors import InputError
from harness.run.protocol import Parent, Reply, run_child

SAMPLES = 4
LENGTHS = (64, 130, 96, 257, 400, 640)
"""Tokens of the prompts. The last one is longer than `index_topk`."""
BF16, E4M3 = 2.0**-9, 2.0**-4
"""The largest relative error of one rounding."""
INDEX_INPUTS = re.compile(r"indexer\.(wq_b|q_b_proj|k_norm|kv_norm)$")
"""Engines round queries and keys of an indexer to e4m3, whatever the type of the cache."""
PACKED_INPUTS = re.compile(
    r"self_attn\.([qo]_[ab]_proj|kv_proj)$|indexer\.q_b_proj$|mlp\.experts$|shared_experts\.(gate|up|down)_proj$"
)
PRODUCTS = re.compile(r"mlp\.experts\.act_fn$")
"""Modules of transformers whose inputs engines round to e4m3 where weights are packed, and the
input of an expert's second product by its factor.
"""
LATENTS = re.compile(r"(kv_a_layernorm|self_attn\.kv_norm|compressor\.kv_norm)$")
FORMATS = {"bf16": BF16, "fp8": E4M3}
"""Type of the cache -> the error of a stored latent."""
TRUTH, PROMPTS = "truth.json", "prompts.json"

_MLA = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
_MOE = {
    "n_shared_experts": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 128,
    "intermediate_size": 256,
    "first_k_dense_replace": 1,
}
_INDEX = {"index_n_heads": 64, "index_head_dim": 128, "index_topk": 512, "q_lora_rank": 128}
_COMMON = {
    "vocab_size": 512,
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
    "tie_word_embeddings": False,
}
_EXPERTS = {"moe_layer_freq": 1, "scoring_func": "softmax"}
"""SGLang reads them, and published checkpoints have them; transformers does not write them."""
_ROUTING = _EXPERTS | {"topk_method": "noaux_tc", "scoring_func": "sigmoid"}


@dataclass(frozen=True, slots=True)
class Architecture:
    """The sizes of a tiny model, and what engines want in `config.json` beside what transformers
    writes.
    """

    sizes: dict[str, Any]
    more: dict[str, Any] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)
    """Patterns in the names of weights that transformers writes -> what engines read in their
    place.
    """
    packed: re.Pattern[str] | None = None
    """The weights, by the names that engines read, that are published in e4m3.

    Engines round the inputs too.
    """
    lengths: tuple[int, ...] = LENGTHS
    """Tokens of the prompts."""


ARCHITECTURES = {
    "deepseek_v2": Architecture(
        _COMMON | _MLA | _MOE | {"q_lora_rank": None, "topk_method": "greedy"}, _EXPERTS
    ),
    "deepseek_v32": Architecture(_COMMON | _MLA | _MOE | _INDEX, _ROUTING),
    "glm_moe_dsa": Architecture(
        _COMMON
        | _MLA
        | _MOE
        | _INDEX
        | {
            "index_n_heads": 32,
            "mlp_layer_types": ["dense", "sparse"],
        },
        # transformers always rotates pairs in the indexer of GLM; vLLM reads it here, and takes
        # halves without it.
        _ROUTING | {"indexer_rope_interleave": True},
    ),
    "deepseek_v4": Architecture(
        _COMMON
        | {
            "num_key_value_heads": 1,
            "head_dim": 512,
            "q_lora_rank": 128,
            "num_experts_per_tok": 2,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "moe_intermediate_size": 128,
            "sliding_window": 128,
            "o_groups": 2,
            "o_lora_rank": 128,
            "index_n_heads": 64,
            "index_head_dim": 128,
            "index_topk": 512,
            "max_position_embeddings": 4096,
            "num_hidden_layers": 3,
            "mlp_layer_types": ["hash_moe", "moe", "moe"],
            "layer_types": [
                "sliding_attention",
                "heavily_compressed_attention",
                "compressed_sparse_attention",
            ],
        },
        {
            "expert_dtype": "fp8",
            "topk_method": "noaux_tc",
            "num_nextn_predict_layers": 0,
            "quantization_config": block_fp8.CONFIG,
        },
        {
            r"^model\.": "",
            r"^embed_tokens": "embed",
            r"^hc_head\.hc_": "hc_head_",
            r"\.attn\.norm\.": ".attn.kv_norm.",
        },
        re.compile(
            r"attn\.(w[qo]_[ab]|wkv|indexer\.wq_b)\.weight$|experts(\.\d+)?\.w[123]\.weight$"
        ),
        # Four tokens are one entry of its indexer, which chooses among more than 512.
        lengths=(*LENGTHS, 2600),
    ),
    "kimi_linear": Architecture(
        _COMMON
        | _MLA
        | {
            "q_lora_rank": None,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "n_group": 1,
            "topk_group": 1,
            "moe_intermediate_size": 128,
            "intermediate_size": 256,
            "n_shared_experts": 1,
            "linear_num_heads": 8,
            "linear_head_dim": 128,
            "layer_types": ["linear_attention", "full_attention"],
            # vLLM norms what KDA gives with 1e-5, whatever `config.json` says (finding 19).
            "rms_norm_eps": 1e-5,
            "mlp_layer_types": ["dense", "sparse"],
        },
        {
            "mla_use_nope": True,
            "first_k_dense_replace": 1,
            "moe_layer_freq": 1,
            "use_grouped_topk": True,
            "moe_router_activation_func": "sigmoid",
            "num_nextn_predict_layers": 0,
            "rope_theta": 10000.0,
            "max_position_embeddings": 2048,
            "linear_attn_config": {
                "kda_layers": [1],
                "full_attn_layers": [2],
                "num_heads": 8,
                "head_dim": 128,
                "short_conv_kernel_size": 4,
            },
        },
        {r"layers\.0\.block_sparse_moe\.": "layers.0.mlp."},
    ),
    "longcat_flash": Architecture(
        _COMMON
        | _MLA
        | {
            "q_lora_rank": 128,
            "num_layers": 1,
            "ffn_hidden_size": 256,
            "expert_ffn_hidden_size": 128,
            "n_routed_experts": 8,
            "moe_topk": 2,
            "zero_expert_num": 2,
        },
        {"mla_scale_q_lora": True, "mla_scale_kv_lora": True},
    ),
}
"""Name in transformers -> architecture. transformers 5.23 has no DeepSeek V4.1 and no Kimi K3, and
no causal language model of Kimi K2.5; GLM 5 Next it has as a model of images alone.
"""


class Decisions(TorchFunctionMode):
    """Records the choices of each top-k of a forward, or replays recorded ones in their order.

    Experts and tokens of an indexer are chosen by `topk` in each model of transformers.
    """

    def __init__(self, replayed: list[Tensor] | None = None) -> None:
        super().__init__()
        self.chosen: list[Tensor] = []
        self.replayed = replayed

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") != "topk":
            return result
        indices = result.indices
        if self.replayed is not None:
            indices = self.replayed[len(self.chosen)]
            dim = (kwargs or {}).get("dim", args[2] if len(args) > 2 else -1)
            result = torch.return_types.topk((args[0].gather(dim, indices), indices))  # type: ignore[attr-defined]
        self.chosen.append(indices)
        return result


def build(name: str, seed: int) -> Any:
    """A model of the architecture in float32 with weights that bfloat16 holds exactly.

    Raises InputError.

    Weights have 16 levels, so that a checkpoint packs to a quarter, and a root mean square of 1.5 /
    sqrt(inputs); embeddings have 1. If some are packed, the steps are powers of two. Vectors keep
    what transformers gives them.
    """
    if name not in ARCHITECTURES:
        raise InputError(f"canary random {name}: choose one of {', '.join(ARCHITECTURES)}")
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(name, **ARCHITECTURES[name].sizes)
    with torch.random.fork_rng(devices=[]):
        # transformers draws some vectors, such as the decays of Kimi Linear, from torch's own
        # generator.
        torch.manual_seed(seed)
        model: Any = (
            AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
        )
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if weight.dim() >= 2 and "A_log" not in key:
                scale = 1.0 if "embed" in key else 1.5 * weight.shape[-1] ** -0.5
                # 16 levels -15, -13, ..., 15 have a root mean square of 9.2.
                levels = torch.randint(16, weight.shape, generator=generator) * 2.0 - 15.0
                step = scale / 9.2
                weight.copy_(
                    levels * (2.0 ** round(math.log2(step)) if ARCHITECTURES[name].packed else step)
                )
            weight.copy_(weight.bfloat16().float())
        for key, values in model.named_buffers():
            if key.endswith("tid2eid"):
                experts = torch.rand(values.shape[0], 8, generator=generator).argsort(dim=1)[
                    :, : values.shape[1]
                ]
                values.copy_(experts)
    return model


def prompts(vocab_size: int, seed: int, lengths: tuple[int, ...] = LENGTHS) -> list[list[int]]:
    """Random tokens, without the special ones."""
    generator = torch.Generator().manual_seed(seed + 1)
    return [
        torch.randint(2, vocab_size, (length,), generator=generator).tolist() for length in lengths
    ]


def token_logprobs(model: Any, tokens: list[int]) -> Tensor:
    """The log probability [n - 1] float64 of each token but the first, teacher forced."""
    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0, :-1].double()
    return logits.log_softmax(-1).gather(1, torch.tensor(tokens[1:])[:, None]).squeeze(1)


@contextmanager
def rounding_noise(model: Any, cache: str, generator: torch.Generator) -> Iterator[None]:
    """Inside the block the output of each module is off by a random share of one rounding.

    It is that of bfloat16, of e4m3 for queries and keys of an indexer, and of `cache`, a key of
    FORMATS, for latents. Where weights are packed, the inputs of their products are off by one
    rounding to e4m3.
    """

    def noisy(found: Any, size: float) -> Any:
        values = found[0] if isinstance(found, tuple) else found
        if not isinstance(values, Tensor) or not values.is_floating_point():
            return found
        values = values * (1 + size * (2 * torch.rand(values.shape, generator=generator) - 1))
        return (values, *found[1:]) if isinstance(found, tuple) else values

    packed = ARCHITECTURES[model.config.model_type].packed
    handles = []
    for name, module in model.named_modules():
        if not name or "rotary" in name:
            continue
        is_e4m3 = INDEX_INPUTS.search(name) or (packed and PRODUCTS.search(name))
        size = E4M3 if is_e4m3 else FORMATS[cache] if LATENTS.search(name) else BF16
        handles.append(
            module.register_forward_hook(
                lambda _module, _args, output, size=size: noisy(output, size)
            )
        )
        if packed and PACKED_INPUTS.search(name):
            handles.append(
                module.register_forward_pre_hook(lambda _module, args: noisy(args, E4M3))
            )
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def with_spread(
    model: Any, tokens: list[int], seed: int, caches: tuple[str, ...] = tuple(FORMATS)
) -> dict[str, Any]:
    """The truth of one sequence:

    `logprobs`, and for each type of cache `steady` and `free`, each [SAMPLES][n - 1].

    They are the distances of the samples from the truth, with the truth's decisions and with their
    own.
    """
    with Decisions() as recorded:
        truth = token_logprobs(model, tokens)
    found: dict[str, Any] = {"tokens": tokens, "logprobs": truth.tolist()}
    for cache in caches:
        generator = torch.Generator().manual_seed(seed)
        found[cache] = {"steady": [], "free": []}
        for _ in range(SAMPLES):
            for kind, replayed in (("steady", recorded.chosen), ("free", None)):
                with rounding_noise(model, cache, generator), Decisions(replayed):
                    distance = token_logprobs(model, tokens) - truth
                found[cache][kind].append([round(value, 6) for value in distance.tolist()])
    return found


def write_checkpoint(name: str, out: Path, seed: int) -> Any:
    """Write the checkpoint, its prompts and their log probabilities in a new folder.

    Returns the model in float32.

    Raises InputError for what transformers refuses.
    """
    try:
        model = build(name, seed)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"canary random {name}: transformers refuses it: {error}") from error
    out.mkdir(parents=True, exist_ok=True)
    # A copy: `to` rounds the frequencies of the rotary embedding too, and `float` keeps that.
    deepcopy(model).to(torch.bfloat16).save_pretrained(out)
    if ARCHITECTURES[name].renamed or ARCHITECTURES[name].packed:
        _rewrite_weights(out / "model.safetensors", ARCHITECTURES[name])
    # vLLM does not load Kimi Linear without a tokenizer. Tokens 0 and 1 are the special ones.
    known = [PAD_TOKEN, EOS_TOKEN, *(f"t{token}" for token in range(2, model.config.vocab_size))]
    tokenizer.save(recall.tokenizer(known), out)
    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(config | ARCHITECTURES[name].more, indent=1))
    sequences = prompts(model.config.vocab_size, seed, ARCHITECTURES[name].lengths)
    truth = [token_logprobs(model, tokens).tolist() for tokens in sequences]
    (out / PROMPTS).write_text(json.dumps({"sequences": sequences, "logprobs": truth}))
    return model


def _rewrite_weights(file: Path, architecture: Architecture) -> None:
    """Give the weights of a file the names and the types that engines read."""
    from safetensors.torch import load_file, save_file

    def engine_name(key: str) -> str:
        for pattern, name in architecture.renamed.items():
            key = re.sub(pattern, name, key)
        return key

    weights = {engine_name(key): weight.clone() for key, weight in load_file(file).items()}
    if architecture.packed:
        weights = block_fp8.packed(weights, architecture.packed)
    save_file(weights, file, metadata={"format": "pt"})


def save_truth(folder: Path, truth: dict[str, Any]) -> None:
    """Write the truth of a checkpoint, compressed."""
    (folder / f"{TRUTH}.xz").write_bytes(lzma.compress(json.dumps(truth).encode()))


def load_truth(folder: Path) -> dict[str, Any]:
    """Read it. Raises InputError if the folder has none."""
    file = folder / f"{TRUTH}.xz"
    if not file.is_file():
        raise InputError(f"{folder} has no {file.name}; make it with: mla-harness canary random")
    truth: dict[str, Any] = json.loads(lzma.decompress(file.read_bytes()))
    return truth


def write(name: str, out: Path, seed: int, *, quick: bool, progress: Callable[[str], None]) -> None:
    """Write the checkpoint, and unless `quick` how far rounding moves each token of its prompts."""
    model = write_checkpoint(name, out, seed)
    progress(f"written: {out}")
    if quick:
        return
    sequences = []
    asked = prompts(model.config.vocab_size, seed, ARCHITECTURES[name].lengths)
    for number, tokens in enumerate(asked):
        sequences.append(with_spread(model, tokens, seed + number))
        progress(f"prompt {number + 1} of {len(asked)}: {len(tokens)} tokens")
    save_truth(out, {"architecture": name, "seed": seed, "sequences": sequences})


def main(parent: Parent) -> None:
    """Write a checkpoint; each line of progress is a reply."""
    request = parent.request(RandomCanary)
    if request is None:
        return
    write(
        request.architecture,
        Path(request.out),
        request.seed,
        quick=request.quick,
        progress=lambda line: parent.reply(Reply(progress={"line": line})),
    )
    parent.reply(Reply(result={}))


if __name__ == "__main__":
    run_child(main)
