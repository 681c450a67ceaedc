"""A random checkpoint and its truth: rounding passes the oracle `logprobs`, and small errors of a
model do not.
"""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from canaries import logprobs
from harness.core.errors import InputError

pytest.importorskip("transformers")
from canaries import block_fp8, judge_logprobs, random_model
from tests.canary.small_models import LENGTHS, SMALL
from tests.transcripts import Approved

Change = Callable[[Any], list[Any]]


@pytest.fixture(scope="module")
def reference() -> tuple[Any, list[dict[str, Any]]]:
    """A tiny DeepSeek V3.2 in float32, and the truth of a few sequences."""
    torch.set_num_threads(1)
    row = random_model.ARCHITECTURES["deepseek_v32"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(
            random_model.ARCHITECTURES,
            "deepseek_v32",
            dataclasses.replace(row, sizes=row.sizes | SMALL),
        )
        model = random_model.build("deepseek_v32", 0)
    sequences = random_model.prompts(256, 0, LENGTHS)
    return model, [
        random_model.with_spread(model, tokens, n, ("bf16",)) for n, tokens in enumerate(sequences)
    ]


def hooked(module: Any, change: Callable[[Any], Any]) -> Any:
    return module.register_forward_hook(lambda _module, _args, output: change(output))


def softer(model: Any) -> list[Any]:
    for layer in model.model.layers:
        layer.self_attn.scaling *= 1.03
    return []


def shifted_index_keys(model: Any) -> list[Any]:
    return [
        hooked(layer.self_attn.indexer.k_norm, lambda keys: keys.roll(1, dims=1))
        for layer in model.model.layers
    ]


def worst_tokens(model: Any) -> list[Any]:
    for layer in model.model.layers:
        layer.self_attn.indexer.weights_proj.weight.data.neg_()
    return []


def one_stale_slot(model: Any) -> list[Any]:
    def stale(latents: Any) -> Any:
        latents = latents.clone()
        latents[:, 40] = latents[:, 39]
        return latents

    return [hooked(model.model.layers[0].self_attn.kv_a_layernorm, stale)]


def served(reference: tuple[Any, list[dict[str, Any]]], change: Change | None) -> tuple[Any, float]:
    """The judgement of the model in bfloat16 as an engine, and the share of likeliest tokens that
    it keeps.
    """
    model, truth = reference
    engine = copy.deepcopy(model).to(torch.bfloat16)
    handles = change(engine) if change else []
    found = [random_model.token_logprobs(engine, sequence["tokens"]).tolist() for sequence in truth]
    same = [likeliest(engine, s["tokens"]) == likeliest(model, s["tokens"]) for s in truth]
    for handle in handles:
        handle.remove()
    tokens = judge_logprobs.tokens_of(truth, found, "bf16", "prompt tokens")
    return logprobs.judged(tokens), float(torch.cat(same).float().mean())


def likeliest(model: Any, tokens: list[int]) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(torch.tensor([tokens])).logits[0].argmax(-1)
    return found


def test_rounding_to_bfloat16_passes_and_fragile_tokens_are_counted(reference: Any) -> None:
    judgement, same = served(reference, None)
    assert not judgement.findings and judgement.looked_at > 400 and same > 0.95
    assert "near a tie" in judgement.notes[0]


@pytest.mark.parametrize("change", [softer, shifted_index_keys, worst_tokens])
def test_an_error_that_keeps_nine_answers_of_ten_is_found(reference: Any, change: Change) -> None:
    judgement, same = served(reference, change)
    assert judgement.findings and same > 0.9


def test_one_stale_slot_of_a_layer_is_found(reference: Any) -> None:
    assert served(reference, one_stale_slot)[0].findings


def test_a_value_that_is_not_finite_is_found(reference: Any) -> None:
    truth = reference[1]
    found = [list(sequence["logprobs"]) for sequence in truth]
    found[1][3] = float("nan")
    judgement = logprobs.judged(judge_logprobs.tokens_of(truth, found, "bf16", "prompt tokens"))
    assert [finding.cause for finding in judgement.findings] == ["nan"]


def test_missing_log_probabilities_are_refused(reference: Any) -> None:
    with pytest.raises(InputError, match="the truth has"):
        judge_logprobs.tokens_of(reference[1], [[0.0]] * len(LENGTHS), "bf16", "prompt tokens")


def test_replayed_decisions_are_those_of_the_truth(reference: Any) -> None:
    model, truth = reference
    tokens = truth[0]["tokens"]
    with random_model.Decisions() as first:
        wanted = random_model.token_logprobs(model, tokens)
    with random_model.Decisions(first.chosen) as again:
        assert torch.equal(random_model.token_logprobs(model, tokens), wanted)
    # Two indexers, and three of a router: the best two of each group, groups, experts.
    assert len(first.chosen) == 5
    assert all(torch.equal(a, b) for a, b in zip(first.chosen, again.chosen, strict=True))


def test_the_truth_has_the_frequencies_that_engines_compute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = random_model.ARCHITECTURES["deepseek_v32"]
    sizes = (
        row.sizes | SMALL | {"num_hidden_layers": 1, "first_k_dense_replace": 1, "vocab_size": 32}
    )
    monkeypatch.setitem(
        random_model.ARCHITECTURES, "deepseek_v32", dataclasses.replace(row, sizes=sizes)
    )
    monkeypatch.setattr(random_model, "prompts", lambda *args: [[2, 3, 4]])
    written = random_model.write_checkpoint("deepseek_v32", tmp_path / "out", 0)
    buffers = dict(random_model.build("deepseek_v32", 0).named_buffers())
    assert "model.rotary_emb.inv_freq" in buffers
    assert all(torch.equal(values, buffers[name]) for name, values in written.named_buffers())


def test_the_seed_decides_each_value_also_those_that_transformers_draws() -> None:
    first, again = (dict(random_model.build("kimi_linear", 3).state_dict()) for _ in range(2))
    assert all(torch.equal(values, again[name]) for name, values in first.items())


@pytest.fixture
def packed_architecture(monkeypatch: pytest.MonkeyPatch) -> str:
    """A small DeepSeek V4."""
    row = random_model.ARCHITECTURES["deepseek_v4"]
    sizes = row.sizes | {"vocab_size": 32, "head_dim": 128, "index_n_heads": 4}
    monkeypatch.setitem(
        random_model.ARCHITECTURES, "deepseek_v4", dataclasses.replace(row, sizes=sizes)
    )
    return "deepseek_v4"


def test_packed_weights_hold_the_bits_of_the_truth_under_the_names_that_engines_read(
    packed_architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.torch import load_file

    monkeypatch.setattr(random_model, "prompts", lambda *args: [[2, 3, 4]])
    model = random_model.write_checkpoint(packed_architecture, tmp_path, 0)
    weights, parameters = load_file(tmp_path / "model.safetensors"), dict(model.named_parameters())
    attention, experts = "layers.2.attn.", "layers.0.ffn.experts.1."
    pairs = {
        attention + "wq_b": parameters["model.layers.2.self_attn.q_b_proj.weight"],
        attention + "indexer.wq_b": parameters[
            "model.layers.2.self_attn.compressor.indexer.q_b_proj.weight"
        ],
        experts + "w2": parameters["model.layers.0.mlp.experts.down_proj"][1],
        experts + "w3": parameters["model.layers.0.mlp.experts.gate_up_proj"][1].chunk(2)[1],
    }
    for name, wanted in pairs.items():
        codes, scales = weights[f"{name}.weight"], weights[f"{name}.scale"]
        assert codes.dtype == torch.float8_e4m3fn and scales.dtype == torch.float32
        spread = scales.repeat_interleave(128, 0).repeat_interleave(128, 1)[
            : codes.shape[0], : codes.shape[1]
        ]
        assert torch.equal(codes.float() * spread, wanted)
    assert weights[attention + "compressor.wkv.weight"].dtype == torch.bfloat16
    named = {
        "embed.weight",
        "norm.weight",
        "hc_head_fn",
        attention + "kv_norm.weight",
        attention + "compressor.norm.weight",
    }
    assert named <= weights.keys() and not any(name.startswith("model.") for name in weights)


def test_a_weight_that_e4m3_does_not_hold_is_refused(approved: Approved) -> None:
    with approved.raises(ValueError):
        block_fp8.packed({"w": torch.tensor([[1.0, 0.3]])}, re.compile("w"))


def test_inputs_of_packed_weights_are_rounded_to_e4m3(
    packed_architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokens = random_model.build(packed_architecture, 0), list(range(2, 32))
    steady = torch.tensor(random_model.with_spread(model, tokens, 0, ("bf16",))["bf16"]["steady"])
    monkeypatch.setattr(random_model, "PACKED_INPUTS", re.compile("no module"))
    monkeypatch.setattr(random_model, "PRODUCTS", re.compile("no module"))
    unpacked = torch.tensor(random_model.with_spread(model, tokens, 0, ("bf16",))["bf16"]["steady"])
    assert steady.abs().median() > 2 * unpacked.abs().median()


def test_an_unknown_architecture_is_refused(tmp_path: Path, approved: Approved) -> None:
    with approved.raises(InputError):
        random_model.write_checkpoint("deepseek_v9", tmp_path, 0)
