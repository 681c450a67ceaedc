"""canary-mtp with four times as many columns, for a kernel that takes more than it has.

The new columns are zeros. The mean square of a hidden state is then a quarter, so its norm gives
twice the values, and its weights are halved. Powers of two round nothing, so the answers stay.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

WEIGHTS = "model.safetensors"
TIMES = 4
NORMS = re.compile(r"(input_layernorm|post_attention_layernorm|enorm|hnorm|model\.norm|head\.norm)")
ROWS = re.compile(r"(o_proj|down_proj)\.weight$")
COLUMNS = re.compile(
    r"(embed_tokens|head|q_a_proj|kv_a_proj_with_mqa|gate_proj|up_proj|gate)\.weight$"
)
JOINED = re.compile(r"eh_proj\.weight$")
"""It takes an embedding and a hidden state, side by side."""


def _wider(values: Tensor, dim: int) -> Tensor:
    """`values` with zeros behind its entries of `dim`."""
    shape = list(values.shape)
    shape[dim] *= TIMES - 1
    return torch.cat([values, values.new_zeros(shape)], dim)


def widened_weight(name: str, values: Tensor) -> Tensor:
    """The weight of this name in the wide checkpoint."""
    if NORMS.search(name):
        return _wider(values / TIMES**0.5, 0)
    if JOINED.search(name):
        parts = [_wider(part, 1) for part in values.chunk(2, 1)]
        return _wider(torch.cat(parts, 1), 0)
    if ROWS.search(name):
        return _wider(values, 0)
    return _wider(values, 1) if COLUMNS.search(name) else values


def write_wide(source: Path, out: Path) -> Path:
    """Write the checkpoint of `source` to `out`, with more columns. Returns `out`."""
    shutil.copytree(source, out, ignore=shutil.ignore_patterns(WEIGHTS), dirs_exist_ok=True)
    weights = load_file(source / WEIGHTS)
    wide = {name: widened_weight(name, values) for name, values in weights.items()}
    save_file(wide, out / WEIGHTS, metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config["hidden_size"] *= TIMES
    config["rms_norm_eps"] /= TIMES
    (out / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    return out
