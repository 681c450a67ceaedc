"""Builds canary-eagle: the module of canary-mtp as a draft model of its own, of the Eagle kind.

vLLM runs it as `EagleDeepSeekMTPModel` with `method: eagle`. The layer, the projection and the
norms are those of `canaries/construct_mtp.py` under Eagle's names, with the shared expert as its
MLP. It has no embeddings and no output head: an engine shares the target's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from canaries import construct_mtp

CONFIG: dict[str, Any] = construct_mtp.CONFIG | {
    # vLLM numbers the layer behind those of the target. A smaller number of dense layers would make
    # experts of its MLP.
    "num_hidden_layers": 1,
    "first_k_dense_replace": construct_mtp.CONFIG["num_hidden_layers"] + 1,
}
RENAMED = {"eh_proj.": "fc.", "enorm.": "enorm.", "hnorm.": "hnorm.", "shared_head.norm.": "norm."}
"""What stands beside the layer: its name in the module -> its name in an Eagle checkpoint."""
LEFT_OUT = ("shared_head.head.", "embed_tokens.", "mlp.experts.", "mlp.gate.")


def weights(seed: int = 0) -> dict[str, Tensor]:
    """All weights by the names that vLLM's `deepseek_eagle.py` loads, float32."""
    module = f"model.layers.{construct_mtp.CONFIG['num_hidden_layers']}."
    found = {}
    for name, weight in construct_mtp.weights(seed).items():
        own = name.removeprefix(module)
        if not name.startswith(module) or own.startswith(LEFT_OUT):
            continue
        part = next((old for old in RENAMED if own.startswith(old)), "")
        layered = f"layers.0.{own.replace('mlp.shared_experts.', 'mlp.')}"
        found[RENAMED[part] + own.removeprefix(part) if part else layered] = weight
    return found


def write(out: Path, seed: int = 0) -> None:
    """Write the checkpoint to `out`, in bfloat16. The tokenizer is the target's."""
    kept = {name: weight.bfloat16().contiguous() for name, weight in weights(seed).items()}
    save_file(kept, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n", encoding="utf-8")
