"""A model as a Hugging Face directory: `config.json`, `model.safetensors`, tokenizer files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harness.core.extras import safetensors
from harness.engine.model.layers import compute_dtype
from harness.engine.model.transformer import CausalLM
from harness.engine.schedule.config import EngineModelConfig

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")

# Kimi Linear has Mixtral's names for its experts.
_EXPERT_NAMES = {
    "deepseek_v2": {"gate_proj": "gate_proj", "up_proj": "up_proj", "down_proj": "down_proj"},
    "kimi_linear": {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"},
}
# Serving engines keep these in float32 in a model of any dtype.
_FLOAT32_NAMES = ("A_log", "dt_bias", "e_score_correction_bias")


def save(model: CausalLM, directory: str | Path, tokenizer: str | Path | None = None) -> Path:
    """Write `model` in its own dtype, for engines and transformers. Returns the directory.

    Tokenizer files are copied from the directory `tokenizer`.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    dtype = model.embed_tokens.weight.dtype
    config = model.config.to_hf() | {"torch_dtype": str(dtype).removeprefix("torch.")}
    (directory / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    tensors = {
        # The format refuses two tensors of one storage, and experts are views of a stack.
        name: (
            tensor.detach()
            .to("cpu", _stored_dtype(name, dtype))
            .clone(memory_format=torch.contiguous_format)
        )
        for name, tensor in _to_hf(model)
    }
    # transformers refuses a file without the format's name.
    safetensors.save_file(tensors, directory / WEIGHTS_FILE, metadata={"format": "pt"})
    if tokenizer is not None:
        for name in TOKENIZER_FILES:
            source = Path(tokenizer) / name
            if source.exists() and source.resolve() != (directory / name).resolve():
                shutil.copyfile(source, directory / name)
    return directory


def load_config(directory: str | Path) -> EngineModelConfig:
    """Read `config.json`. Raises FileNotFoundError, or ValueError for an unsupported model."""
    config: dict[str, Any] = json.loads((Path(directory) / CONFIG_FILE).read_text(encoding="utf-8"))
    return EngineModelConfig.from_hf(config)


def load(directory: str | Path, dtype: torch.dtype, device: str | torch.device = "cpu") -> CausalLM:
    """Read a checkpoint into a model of `dtype` in evaluation mode.

    Raises FileNotFoundError for a missing file and ValueError for tensors that are missing or left
    over.
    """
    directory = Path(directory)
    config = load_config(directory)
    # Only names and shapes are needed. The weights come from the file.
    with torch.device("meta"):
        model = CausalLM(config)
    stored = safetensors.load_file(directory / WEIGHTS_FILE)
    state = {}
    for name, names in _hf_names(model).items():
        if missing := [hf_name for hf_name in names if hf_name not in stored]:
            raise ValueError(f"{directory}: {WEIGHTS_FILE} lacks the tensor {missing[0]}")
        parts = [stored.pop(hf_name) for hf_name in names]
        # Expert weights are stacked, even of a single expert.
        value = torch.stack(parts) if ".experts." in name else parts[0]
        expected = model.get_parameter(name).shape
        if value.shape != expected:
            raise ValueError(
                f"{directory}: {names[0]} has shape {list(parts[0].shape)}, expected"
                f" {list(expected)}"
            )
        state[name] = value.to(device, _stored_dtype(name, dtype))
    # The model has no correction bias. `save` writes one of zeros, because engines expect it.
    left = sorted(name for name in stored if not name.endswith("e_score_correction_bias"))
    if left:
        raise ValueError(
            f"{directory}: {len(left)} tensors have no place in the model, the first is {left[0]}"
        )
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["embed_tokens.weight"]
    model.load_state_dict(state, assign=True)
    if config.tie_word_embeddings:
        model.lm_head.weight = model.embed_tokens.weight
    return model.eval().requires_grad_(False)


def _stored_dtype(name: str, dtype: torch.dtype) -> torch.dtype:
    return compute_dtype(dtype) if name.endswith(_FLOAT32_NAMES) else dtype


def _hf_names(model: CausalLM) -> dict[str, list[str]]:
    """Parameter name -> its names in a checkpoint: one, or one for each expert."""
    config = model.config
    experts = _EXPERT_NAMES[config.architecture]
    moe = (
        "block_sparse_moe" if config.architecture == "kimi_linear" and config.num_experts else "mlp"
    )
    names = {}
    for name, _ in model.named_parameters():
        if name == "lm_head.weight":
            names[name] = [name]
            continue
        hf_name = "model." + name.replace(".mlp.", f".{moe}.")
        if ".experts." in name:
            prefix, kind = hf_name.rsplit(".", 1)
            names[name] = [
                f"{prefix}.{i}.{experts[kind]}.weight" for i in range(config.num_experts)
            ]
        else:
            names[name] = [hf_name]
    return names


def _to_hf(model: CausalLM) -> Iterator[tuple[str, Tensor]]:
    for name, names in _hf_names(model).items():
        parameter = model.get_parameter(name)
        yield from zip(
            names, parameter.unbind(0) if ".experts." in name else (parameter,), strict=True
        )
    if model.config.architecture == "kimi_linear" and model.config.num_experts:
        # Engines expect a correction bias. Zero does not change the chosen experts.
        for i in range(model.config.num_layers):
            bias = torch.zeros(model.config.num_experts)
            yield f"model.layers.{i}.block_sparse_moe.gate.e_score_correction_bias", bias
