"""A canary as GGUF, the file that llama.cpp's server reads.

llama.cpp runs DeepSeek V2 and V3 as `deepseek2`, and V3.2 as `deepseek32`. Both absorb the
projection of the latents: a request has one key of kv_lora_rank + qk_rope_head_dim numbers a token,
and `kv_b_proj` is two tensors, one for the keys and one for the values. Layers for multi-token
prediction are counted among the layers. The names follow ggml-org/llama.cpp's conversion.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from canaries.canary_requests import WrittenGguf
from harness.core.errors import InputError
from harness.core.extras import gguf, safetensors
from harness.run.protocol import Parent, Reply, run_child

ARCHITECTURES = {
    "DeepseekV2ForCausalLM": "deepseek2",
    "DeepseekV3ForCausalLM": "deepseek2",
    "DeepseekV32ForCausalLM": "deepseek32",
}
WEIGHTS = "model.safetensors"
TOKENIZER = "tokenizer.json"
_OUTSIDE_LAYERS = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_IN_LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.k_b_proj": "attn_k_b",
    "self_attn.v_b_proj": "attn_v_b",
    "self_attn.o_proj": "attn_output",
    "self_attn.indexer.wq_b": "indexer.attn_q_b",
    "self_attn.indexer.wk": "indexer.attn_k",
    "self_attn.indexer.k_norm": "indexer.k_norm",
    "self_attn.indexer.weights_proj": "indexer.proj",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.gate.e_score_correction": "exp_probs_b",
    "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
    "eh_proj": "nextn.eh_proj",
    "enorm": "nextn.enorm",
    "hnorm": "nextn.hnorm",
    "embed_tokens": "nextn.embed_tokens",
    "shared_head.head": "nextn.shared_head_head",
    "shared_head.norm": "nextn.shared_head_norm",
}
_TYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
_EXPERT = re.compile(r"(model\.layers\.\d+\.mlp\.experts)\.(\d+)\.(\w+\.weight)")
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+?)[._](weight|bias)")
# The pre-tokenizer of the canaries: digits alone, then GPT-2's pieces of bytes.
_PRE_TOKENIZER = "smollm"


def named(name: str) -> str:
    """The name of a weight in GGUF, from its name in the checkpoint.

    Raises KeyError for a weight that llama.cpp does not have.
    """
    if name in _OUTSIDE_LAYERS:
        return _OUTSIDE_LAYERS[name]
    found = _LAYER.fullmatch(name)
    if found is None:
        raise KeyError(name)
    layer, within, kind = found.groups()
    return f"blk.{layer}.{_IN_LAYER[within]}.{kind}"


def absorbed(
    weights: Mapping[str, Tensor], config: Mapping[str, Any]
) -> Iterator[tuple[str, Tensor]]:
    """The weights as llama.cpp wants them, by the names of the checkpoint.

    `kv_b_proj` [H * (nope + v), R] becomes `k_b_proj` [H, R, nope] and `v_b_proj` [H, v, R]. The
    experts of a layer, [rows, columns] each, become one [experts, rows, columns].
    """
    heads, nope, v = (
        config[name] for name in ("num_attention_heads", "qk_nope_head_dim", "v_head_dim")
    )
    experts: dict[str, dict[int, Tensor]] = {}
    for name, weight in weights.items():
        if name.endswith("kv_b_proj.weight"):
            keys, values = weight.view(heads, nope + v, -1).split([nope, v], dim=1)
            yield name.replace("kv_b_proj", "k_b_proj"), keys.transpose(1, 2)
            yield name.replace("kv_b_proj", "v_b_proj"), values
        elif found := _EXPERT.fullmatch(name):
            layer, number, which = found.groups()
            experts.setdefault(f"{layer}.{which}", {})[int(number)] = weight
        else:
            yield name, weight
    for name, by_number in experts.items():
        yield name, torch.stack([by_number[number] for number in sorted(by_number)])


def _is_kept_in_float32(name: str, weight: Tensor) -> bool:
    """Whether llama.cpp wants a weight in float32: vectors, and what routes tokens to experts."""
    return weight.dim() == 1 or "ffn_gate_inp" in name or "indexer.proj" in name


def _add_sizes(writer: Any, config: Mapping[str, Any]) -> None:
    """The numbers of the configuration, under the keys of GGUF."""
    rank, rope = config["kv_lora_rank"], config["qk_rope_head_dim"]
    num_drafting = config.get("num_nextn_predict_layers") or 0
    writer.add_block_count(config["num_hidden_layers"] + num_drafting)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    # All heads share one key, the latent.
    writer.add_head_count_kv(1)
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_leading_dense_block_count(config["first_k_dense_replace"])
    # The key must be there. 0 says that queries have one projection.
    writer.add_q_lora_rank(config["q_lora_rank"] or 0)
    writer.add_kv_lora_rank(rank)
    writer.add_key_length(rank + rope)
    writer.add_value_length(rank)
    writer.add_key_length_mla(config["qk_nope_head_dim"] + rope)
    writer.add_value_length_mla(config["v_head_dim"])
    writer.add_rope_dimension_count(rope)
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_count(config["n_routed_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    writer.add_expert_weights_norm(config["norm_topk_prob"])
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType[config["scoring_func"].upper()])
    if num_drafting:
        writer.add_nextn_predict_layers(num_drafting)
    if "index_topk" in config:
        writer.add_indexer_head_count(config["index_n_heads"])
        writer.add_indexer_key_length(config["index_head_dim"])
        writer.add_indexer_top_k(config["index_topk"])


def _add_tokenizer(writer: Any, file: Path, config: Mapping[str, Any]) -> bool:
    """The tokenizer. Returns whether llama.cpp can split text by it.

    A vocabulary of whole words has no merges, and llama.cpp has no tokenizer for it: such a canary
    is asked by token ids.
    """
    read = json.loads(file.read_text(encoding="utf-8"))
    by_id = {number: token for token, number in read["model"]["vocab"].items()}
    special = {row["id"] for row in read["added_tokens"]}
    merges = read["model"].get("merges") or []
    numbers = range(config["vocab_size"])
    kinds = gguf.TokenType
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(_PRE_TOKENIZER)
    writer.add_token_list([by_id.get(number, f"[PAD{number}]") for number in numbers])
    writer.add_token_types(
        [
            kinds.CONTROL
            if number in special
            else kinds.NORMAL
            if number in by_id
            else kinds.UNUSED
            for number in numbers
        ]
    )
    pairs = [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]
    # llama.cpp does not load a vocabulary without merges. Words have none, so one stands there.
    writer.add_token_merges(pairs or ["a b"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_pad_token_id(config["pad_token_id"])
    writer.add_add_bos_token(False)
    return bool(merges)


def write(checkpoint: Path, out: Path, kind: str = "bf16") -> bool:
    """Write a checkpoint, a folder as Hugging Face has them, to the file `out`.

    `kind` is the type of the matrices: bf16, f16 or f32. Returns whether its text can be split to
    tokens. Raises InputError for an architecture that llama.cpp does not run, or a missing file.
    """
    for name in ("config.json", WEIGHTS, TOKENIZER):
        if not (checkpoint / name).is_file():
            raise InputError(f"{checkpoint}: no {name} there; name the folder of a canary")
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    (architecture,) = config["architectures"]
    if architecture not in ARCHITECTURES:
        raise InputError(
            f"{checkpoint}: {architecture} cannot be written as GGUF; choose one of"
            f" {', '.join(ARCHITECTURES)}"
        )
    writer = gguf.GGUFWriter(out, ARCHITECTURES[architecture])
    writer.add_name(checkpoint.name)
    _add_sizes(writer, config)
    splits_text = _add_tokenizer(writer, checkpoint / TOKENIZER, config)
    matrices = gguf.GGMLQuantizationType[kind.upper()]
    for name, weight in absorbed(safetensors.load_file(checkpoint / WEIGHTS), config):
        in_gguf = named(name)
        is_float32 = _is_kept_in_float32(in_gguf, weight)
        found = weight.to(torch.float32 if is_float32 else _TYPES[kind]).contiguous()
        # numpy has no bfloat16, so a row goes over as its bytes.
        rows = found.view(torch.uint8).numpy()
        raw = gguf.GGMLQuantizationType.F32 if is_float32 else matrices
        writer.add_tensor(in_gguf, rows, raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return splits_text


def main(parent: Parent) -> None:
    """Write the file that the parent asks for."""
    request = parent.request(WrittenGguf)
    if request is None:
        return
    splits_text = write(Path(request.checkpoint), Path(request.out), request.kind)
    parent.reply(Reply(result={"splits_text": splits_text}))


if __name__ == "__main__":
    run_child(main)
