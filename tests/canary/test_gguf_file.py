"""A canary as GGUF has all weights of the checkpoint, by the names and shapes of llama.cpp."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from canaries import gguf_file
from harness.core.errors import InputError
from harness.core.files import FIXTURES
from tests.conftest import Cli
from tests.transcripts import Approved

gguf = pytest.importorskip("gguf")


def fields_of(file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The keys of a file, and its tensors by name."""
    reader = gguf.GGUFReader(file)
    keys = {name: field.contents() for name, field in reader.fields.items()}
    return keys, {one.name: one for one in reader.tensors}


def values_of(tensor: Any) -> torch.Tensor:
    """The numbers of a tensor, float32, in the order of torch."""
    is_float = tensor.tensor_type == gguf.GGMLQuantizationType.F32
    kind = torch.float32 if is_float else torch.bfloat16
    raw = torch.from_numpy(tensor.data.copy()).view(torch.uint8)
    return raw.view(kind).float().view(*reversed(tensor.shape.tolist()))


@pytest.mark.parametrize(
    ("name", "num_layers", "splits_text"),
    [("mla", 3, True), ("moe", 3, True), ("mtp", 3, False), ("dsa", 2, False)],
)
def test_every_number_of_a_checkpoint_is_in_the_file(
    name: str, num_layers: int, splits_text: bool, tmp_path: Path
) -> None:
    checkpoint, file = FIXTURES / f"canary-{name}", tmp_path / "file.gguf"
    assert gguf_file.write(checkpoint, file) is splits_text
    keys, tensors = fields_of(file)
    architecture = keys["general.architecture"]
    assert architecture == ("deepseek32" if name == "dsa" else "deepseek2")
    assert keys[f"{architecture}.block_count"] == num_layers
    weights = load_file(checkpoint / "model.safetensors")
    assert sum(one.n_elements for one in tensors.values()) == sum(
        weight.numel() for weight in weights.values()
    )
    head = values_of(tensors["output.weight"])
    assert torch.equal(head, weights["lm_head.weight"].float())
    norm = tensors["blk.0.attn_norm.weight"]
    assert norm.tensor_type == gguf.GGMLQuantizationType.F32


def test_absorbed_projections_give_the_products_of_the_checkpoint(tmp_path: Path) -> None:
    checkpoint, file = FIXTURES / "canary-mla", tmp_path / "file.gguf"
    gguf_file.write(checkpoint, file)
    _, tensors = fields_of(file)
    config = json.loads((checkpoint / "config.json").read_text())
    heads, nope = config["num_attention_heads"], config["qk_nope_head_dim"]
    whole = load_file(checkpoint / "model.safetensors")["model.layers.1.self_attn.kv_b_proj.weight"]
    latent = torch.randn(config["kv_lora_rank"], generator=torch.Generator().manual_seed(1))
    keys, values = (whole.float() @ latent).view(heads, -1).split([nope, config["v_head_dim"]], 1)
    k_b, v_b = (values_of(tensors[f"blk.1.attn_{one}_b.weight"]) for one in "kv")
    torch.testing.assert_close(torch.einsum("r,hrn->hn", latent, k_b), keys)
    torch.testing.assert_close(torch.einsum("r,hvr->hv", latent, v_b), values)


def test_experts_are_stacked_by_their_number(tmp_path: Path) -> None:
    checkpoint, file = FIXTURES / "canary-moe", tmp_path / "file.gguf"
    gguf_file.write(checkpoint, file)
    _, tensors = fields_of(file)
    weights = load_file(checkpoint / "model.safetensors")
    stacked = values_of(tensors["blk.2.ffn_down_exps.weight"])
    for number, expert in enumerate(stacked):
        name = f"model.layers.2.mlp.experts.{number}.down_proj.weight"
        assert torch.equal(expert, weights[name].float())


@pytest.mark.nightly
def test_what_llama_cpp_does_not_run_is_refused(
    cli: Cli, tmp_path: Path, approved: Approved
) -> None:
    def said(checkpoint: Path, *more: object) -> str:
        code, _, err = cli("canary", "gguf", checkpoint, "--out", tmp_path / "file.gguf", *more)
        assert code == 2 and not (tmp_path / "file.gguf").exists()
        return str(err).replace(str(tmp_path), "FOLDER").replace(str(FIXTURES), "FIXTURES")

    bare = shutil.copytree(FIXTURES / "canary-mla", tmp_path / "bare")
    (bare / "tokenizer.json").unlink()
    approved([said(FIXTURES / "canary-hybrid"), said(bare), said(bare, "--type", "q8_0")])
    with pytest.raises(KeyError):
        gguf_file.named("model.layers.0.self_attn.unheard_of.weight")
    with pytest.raises(InputError):
        gguf_file.write(FIXTURES / "canary-eagle", tmp_path / "eagle.gguf")


def test_the_command_says_which_canary_is_asked_by_token_ids(cli: Cli, tmp_path: Path) -> None:
    for name, is_told in (("mla", False), ("mtp", True)):
        file = tmp_path / f"{name}.gguf"
        code, out, _ = cli("canary", "gguf", FIXTURES / f"canary-{name}", "--out", file)
        assert code == 0 and file.is_file() and ("send token ids" in out) is is_told
    assert cli("canary", "gguf", FIXTURES / "canary-mla", "--out", tmp_path / "mla.gguf")[0] == 2
