"""canary-mtp with more columns says what it says with its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from harness.core.files import FIXTURES
from mla_harness_sglang.serve.wide_checkpoint import TIMES, write_wide

CANARY = FIXTURES / "canary-mtp"
MODULE = "model.layers.2."


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_wide(CANARY, tmp_path_factory.mktemp("wide") / "canary")


def logits_of(folder: Path) -> Tensor:
    """Logits [T, V] of some tokens."""
    transformers: Any = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokens = torch.arange(2, 66)[None]
    with torch.no_grad():
        logits: Tensor = model(tokens).logits[0]
    return logits


def test_the_target_says_the_same(wide: Path) -> None:
    torch.testing.assert_close(logits_of(wide), logits_of(CANARY), rtol=1e-4, atol=1e-3)


def normed(hidden: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return hidden * (hidden.square().mean(-1, keepdim=True) + epsilon).rsqrt() * weight


def test_the_module_joins_an_embedding_and_a_hidden_state_to_the_same(wide: Path) -> None:
    def joined(folder: Path, embedding: Tensor, hidden: Tensor, epsilon: float) -> Tensor:
        weights = {
            name.removeprefix(MODULE): values.double()
            for name, values in load_file(folder / "model.safetensors").items()
            if name.startswith(MODULE)
        }
        parts = [
            normed(embedding, weights["enorm.weight"], epsilon),
            normed(hidden, weights["hnorm.weight"], epsilon),
        ]
        return torch.cat(parts, -1) @ weights["eh_proj.weight"].T

    parts = torch.randn(2, 5, 256, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    own = joined(CANARY, parts[0], parts[1], 1e-6)
    zeros = parts.new_zeros(5, 256 * (TIMES - 1))
    padded = [torch.cat([part, zeros], -1) for part in parts]
    more = joined(wide, padded[0], padded[1], 1e-6 / TIMES)
    torch.testing.assert_close(more[:, :256], own)
    assert not more[:, 256:].any()


def test_every_weight_with_columns_of_the_hidden_state_is_wider(wide: Path) -> None:
    own, more = (load_file(folder / "model.safetensors") for folder in (CANARY, wide))
    kept = {name for name in own if own[name].shape == more[name].shape}
    assert not [name for name in kept if 256 in own[name].shape]
