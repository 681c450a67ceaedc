from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from canaries import check, tasks, tokenizer, train
from canaries.recipe import Recipe, model_config
from canaries.tokenizer import encode
from harness.engine.model import checkpoint
from harness.engine.model.kda import KimiDeltaAttention
from harness.engine.model.layers import route
from harness.engine.model.transformer import CausalLM
from harness.engine.schedule.config import EngineModelConfig
from tests.transcripts import Approved, lines_with

QUESTIONS = [
    tasks.Question(f"toy-{i}", f"{i} + {i}?", f"{2 * i}\n#### {2 * i}", str(2 * i))
    for i in range(3)
]
TINY = {
    "vocab_size": 300,
    "hidden_size": 32,
    "num_layers": 2,
    "num_heads": 2,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "kv_lora_rank": 16,
    "intermediate_size": 64,
}
MLA = EngineModelConfig(architecture="deepseek_v2", layer_types=("mla", "mla"), **TINY)  # type: ignore[arg-type]
HYBRID = EngineModelConfig(
    architecture="kimi_linear",
    layer_types=("kda", "mla"),
    use_rope=False,
    kda_num_heads=2,
    kda_head_dim=8,
    **TINY,  # type: ignore[arg-type]
)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    # Models this small lose more to waiting for threads than they gain.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def task(tmp_path: Path) -> str:
    (tmp_path / "toy.jsonl").write_text(
        "".join(json.dumps(asdict(question)) + "\n" for question in QUESTIONS)
    )
    return str(tmp_path / "toy.jsonl")


@pytest.mark.parametrize("config", [MLA, HYBRID], ids=["mla", "hybrid"])
def test_training_makes_the_loss_fall_and_leaves_a_whole_checkpoint(
    config: EngineModelConfig, task: str, tmp_path: Path, approved: Approved
) -> None:
    half_lives = (2.0, 8.0) if config.is_hybrid else None
    recipe = Recipe(steps=8, batch_size=3, warmup_steps=2, check_every=4, kda_half_lives=half_lives)
    lines: list[str] = []
    out = tmp_path / "canary"
    result = train.train(
        task,
        out,
        config.architecture,
        1,
        "cpu",
        recipe=recipe,
        config=config,
        progress=lines.append,
    )
    losses = [
        float(line.split("loss ")[1].split(",")[0]) for line in lines if line.startswith("step")
    ]
    assert losses[-1] < losses[0]
    assert result.steps == 8
    names = {path.name for path in out.iterdir()}
    assert names == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "README.md",
    }
    approved(lines_with((out / "README.md").read_text(), "not ability"))
    assert set(result.accuracy) == {title for title, _, _ in train.CHECKS}


def test_the_seed_fixes_the_trained_weights(task: str, tmp_path: Path) -> None:
    recipe = Recipe(steps=2, batch_size=2, warmup_steps=1)
    weights = []
    for name in ("first", "second"):
        train.train(
            task,
            tmp_path / name,
            device="cpu",
            recipe=recipe,
            config=MLA,
            progress=lambda line: None,
        )
        weights.append((tmp_path / name / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]


def test_training_ends_when_its_time_is_up(task: str, tmp_path: Path) -> None:
    result = train.train(
        task, tmp_path, minutes=1e-9, device="cpu", config=MLA, progress=lambda line: None
    )
    assert result.steps == 0


def test_the_learning_rate_ends_at_zero_by_steps_or_by_time() -> None:
    recipe = Recipe(steps=100, warmup_steps=10, learning_rate=1.0)
    assert train.learning_rate(recipe, 0, 0.0) == pytest.approx(0.1)
    assert train.learning_rate(recipe, 50, 0.1) == pytest.approx(0.5)
    assert train.learning_rate(recipe, 50, 1.0) == train.learning_rate(recipe, 100, 0.1) == 0.0


def test_limited_memory_halves_what_a_head_holds_in_its_half_life() -> None:
    model = CausalLM(HYBRID).reset_parameters(0)
    train.limit_memory(model, (2.0, 8.0))
    layer = model.layers[0].self_attn
    assert isinstance(layer, KimiDeltaAttention)
    decay, _ = layer.gates(torch.zeros(1, 1, 32))
    assert decay[0, 0, :, 0].exp().pow(torch.tensor([2.0, 8.0])).tolist() == pytest.approx(
        [0.5, 0.5]
    )
    assert not layer.A_log.requires_grad


def test_a_device_that_is_not_there_is_refused(approved: Approved) -> None:
    with approved.raises(ValueError):
        train.resolve_device("tpu")


@torch.no_grad()
def test_an_answer_is_exact_when_greedy_decoding_gives_it() -> None:
    words = tokenizer.train([q.prompt + q.completion for q in QUESTIONS], 300)
    model = CausalLM(MLA).double().reset_parameters(0)
    prompt = words.encode(QUESTIONS[0].prompt).ids
    ids = list(prompt)
    for _ in range(6):
        ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
    examples = encode(QUESTIONS[:1], words)
    labels = torch.full((1, len(ids)), -100)
    labels[0, len(prompt) - 1 : -1] = torch.tensor(ids[len(prompt) :])
    decoded = type(examples)(torch.tensor([ids]), labels, torch.tensor([len(ids)]))
    exact, margin = check.exact_answers(model, decoded)
    assert exact.item() and margin.item() > 0
    labels[0, -2] = (labels[0, -2] + 1) % 300
    exact, margin = check.exact_answers(model, decoded)
    assert not exact.item() and margin.item() < 0


@torch.no_grad()
def test_a_nan_is_a_wrong_answer() -> None:
    words = tokenizer.train([q.prompt + q.completion for q in QUESTIONS], 300)
    model = CausalLM(MLA).reset_parameters(0)
    with check.cache_transform(model, lambda kv_c, k_pe: (kv_c * torch.nan, k_pe)):
        exact, _ = check.exact_answers(model, encode(QUESTIONS, words))
    assert not exact.any()
    assert all(layer.cache_transform is None for layer in model.mla_layers())


@pytest.mark.parametrize("scale", [None, 1.0])
def test_an_fp8_cache_rounds_by_at_most_a_sixteenth(scale: float | None) -> None:
    kv_c, k_pe = torch.randn(2, 9, 16, generator=torch.Generator().manual_seed(0)).unbind(0)
    rounded, _ = check.fp8_cache(scale)(kv_c, k_pe)
    assert not torch.equal(rounded, kv_c)
    assert ((rounded - kv_c).abs() <= kv_c.abs() / 16 + 0.002).all()


@pytest.mark.parametrize("name", ["canary-mla", "canary-hybrid", "canary-moe"])
@torch.no_grad()
def test_a_shipped_canary_answers_a_question_and_notices_a_wiped_cache(name: str) -> None:
    directory = Path(__file__).resolve().parents[2] / "fixtures" / name
    # The one with experts knows the first 512 questions of gsm_symbolic alone.
    others = (
        tasks.load("gsm_symbolic")[511:512]
        if name == "canary-moe"
        else tasks.load("aime_shaped")[-1:]
    )
    questions = tasks.load("gsm_symbolic")[:1] + others
    examples = encode(questions, Tokenizer.from_file(str(directory / "tokenizer.json")))
    model = checkpoint.load(directory, torch.float32)
    assert check.exact_answers(model, examples)[0].all()
    with check.cache_transform(model, check.SABOTAGES["all rows zero"]):
        assert not check.exact_answers(model, examples)[0].any()


@torch.no_grad()
def test_the_shipped_canary_with_experts_notices_misread_ids() -> None:
    directory = Path(__file__).resolve().parents[2] / "fixtures" / "canary-moe"
    examples = encode(
        tasks.load("gsm_symbolic")[:2], Tokenizer.from_file(str(directory / "tokenizer.json"))
    )
    model = checkpoint.load(directory, torch.float32)
    with check.ids_transform(model, check.low_and_high_words):
        assert not check.exact_answers(model, examples)[0].any()
    assert check.exact_answers(model, examples)[0].all()


EXPERTS = EngineModelConfig(
    architecture="deepseek_v2",
    layer_types=("mla", "mla"),
    num_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=16,
    **TINY,  # type: ignore[arg-type]
)


def test_a_canary_with_experts_is_trained_and_its_card_says_what_misread_ids_cost(
    task: str, tmp_path: Path, approved: Approved
) -> None:
    recipe = Recipe(steps=8, batch_size=2, warmup_steps=2, check_every=4)
    out = tmp_path / "canary"
    result = train.train(
        task, out, device="cpu", limit=2, recipe=recipe, config=EXPERTS, progress=lambda line: None
    )
    assert result.num_questions == 2
    approved(result.sabotaged)
    card = (out / "README.md").read_text()
    assert "--experts 4" in card and "2 questions" in card
    assert "4 experts of" in card


def test_every_expert_on_every_token_is_the_sum_of_the_chosen_ones() -> None:
    experts = CausalLM(EXPERTS).reset_parameters(0).layers[0].mlp.experts
    x, logits = torch.randn(5, 32), torch.randn(5, 4)
    ids, weights = route(logits, 2)
    torch.testing.assert_close(
        experts.every(x, ids, weights), experts(x, ids, weights), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(
    ("architecture", "experts"), [("kimi_linear", 4), ("deepseek_v2", 3), ("deepseek_v2", 128)]
)
def test_experts_that_no_canary_can_have_are_refused(architecture: str, experts: int) -> None:
    with pytest.raises(ValueError, match="--experts"):
        model_config(architecture, experts)
