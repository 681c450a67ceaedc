from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from torch_poison.patterns import Poison

from harness.accuracy.backends import CANARY_NOTE, open_backend
from harness.accuracy.epochs import run_epochs
from harness.accuracy.judge import judge
from harness.accuracy.tasks import load_task
from harness.core.errors import InputError
from harness.core.files import FIXTURES
from harness.core.records import Verdict
from harness.engine.probe import Probe
from harness.judge.served_engine import open_engine
from tests.transcripts import Approved

CANARY = FIXTURES / "canary-mla"


@pytest.mark.nightly
def test_the_canary_answers_its_questions_in_every_epoch_and_the_run_says_what_it_is(
    tmp_path: Path,
) -> None:
    task = load_task("aime_shaped", tmp_path / "work", limit=6)
    backend = open_backend(f"engine:{CANARY}", concurrency=4, num_blocks=36)
    run = run_epochs(backend, task, tmp_path, num_epochs=2)
    record = judge(run)
    assert [epoch.accuracy for epoch in record.epochs] == [1.0, 1.0]
    assert record.verdict is Verdict.PASS and record.judgement.num_flips == 0
    assert record.epochs[1].changed == 0
    assert (record.model, record.engine, record.dtype) == (
        "canary-mla",
        "engine",
        "float32, kv fp32",
    )
    assert record.note == CANARY_NOTE and record.model_hash.startswith("sha256:")


def test_poison_that_reaches_the_cache_shows_as_invalid_tokens(tmp_path: Path) -> None:
    task = load_task("aime_shaped", tmp_path / "work", limit=2)
    poison = Poison("nan", frozenset({"kv.tail"}))
    backend = open_engine(str(CANARY), concurrency=2, poison=poison, decode_kernel="tiled-multiply")
    run = run_epochs(backend, task, tmp_path, num_epochs=1, max_tokens=8)
    assert all(result.invalid_tokens and not result.correct for result in run.results.values())


def logits_in_memory() -> int:
    """How many tensors of a vocabulary's width, such as logits, are alive in this process."""
    gc.collect()
    width = json.loads((CANARY / "config.json").read_text())["vocab_size"]
    tensors = [one for one in gc.get_objects() if type(one) is torch.Tensor and one.ndim]
    return sum(one.shape[-1] == width for one in tensors)


@pytest.mark.nightly
def test_logits_do_not_pile_up_in_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = open_engine(str(CANARY), concurrency=2)
    before = logits_in_memory()
    backend.generate(["Question: How many?\nAnswer:"] * 2, max_tokens=4, stop=[])
    assert logits_in_memory() == before
    # A probe that keeps them is seen.
    kept: list[torch.Tensor] = []
    monkeypatch.setattr(Probe, "on_logits", lambda self, logits: kept.append(logits))
    backend.generate(["Question: How many?\nAnswer:"], max_tokens=2, stop=[])
    assert logits_in_memory() == before + len(kept) > before


def test_a_prompt_beyond_the_context_is_unanswered(approved: Approved) -> None:
    backend = open_engine(str(CANARY), concurrency=1, max_model_len=64)
    short, long = backend.generate(["one", "2" * 90], max_tokens=2, stop=[])
    assert short.unanswered is None
    approved(long.unanswered)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv": "fp4"}, "engine option kv: Input should be"),
        ({"speed": 9}, "engine option speed: Extra inputs"),
    ],
)
def test_a_wrong_engine_option_is_an_input_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        open_engine(str(CANARY), **options)


def test_options_that_the_checkpoint_cannot_have_are_an_input_error(approved: Approved) -> None:
    with approved.raises(InputError):
        open_engine(str(FIXTURES / "canary-hybrid"), speculative_tokens=2)


def test_a_checkpoint_of_another_kind_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]})
    )
    with pytest.raises(InputError, match=r"--model engine:"):
        open_engine(str(tmp_path))


def test_the_tokenizer_of_the_canary_keeps_an_answers_first_space() -> None:
    tokenizer = Tokenizer.from_file(str(CANARY / "tokenizer.json"))
    assert tokenizer.decode(tokenizer.encode(" 12 apples").ids) == " 12 apples"
