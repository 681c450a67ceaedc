from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest

from harness.accuracy.backends import open_backend
from harness.core.errors import InputError
from mla_harness_vllm.backend import VllmBackend
from tests.transcripts import Approved


def completion(
    text: str, tokens: list[int], logprob: float = -0.1, finish: str = "stop"
) -> SimpleNamespace:
    rows = [{token: SimpleNamespace(logprob=logprob, rank=1)} for token in tokens]
    return SimpleNamespace(
        outputs=[SimpleNamespace(text=text, token_ids=tokens, logprobs=rows, finish_reason=finish)]
    )


class FakeLLM:
    """As much of `vllm.LLM` as the backend touches."""

    replies: dict[str, SimpleNamespace]
    started: ClassVar[list[FakeLLM]]

    def __init__(self, **settings: Any) -> None:
        self.started.append(self)
        self.settings = settings
        model = SimpleNamespace(get_vocab_size=lambda: 100, dtype="torch.bfloat16")
        config = SimpleNamespace(
            model_config=model, cache_config=SimpleNamespace(cache_dtype="fp8_e4m3")
        )
        self.llm_engine = SimpleNamespace(vllm_config=config)
        self.batches: list[int] = []

    def generate(self, prompts: list[str], params: Any, use_tqdm: bool) -> list[SimpleNamespace]:
        assert params.temperature == 0.0 and not use_tqdm
        self.batches.append(len(prompts))
        return [self.replies[prompt] for prompt in prompts]


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> type[FakeLLM]:
    module = ModuleType("vllm")
    module.LLM = FakeLLM  # type: ignore[attr-defined]
    module.SamplingParams = SimpleNamespace  # type: ignore[attr-defined]
    module.__version__ = "0.0.fake"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.setattr(FakeLLM, "started", [], raising=False)
    return FakeLLM


def test_without_vllm_the_error_is_one_line_that_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with approved.raises(InputError):
        open_backend("vllm:some/model")


def test_a_nan_log_probability_and_a_token_outside_the_vocabulary_are_invalid(
    vllm: type[FakeLLM],
) -> None:
    vllm.replies = {
        "good": completion(" 4", [7, 8]),
        "nan": completion("!", [0], logprob=float("nan")),
        "outside": completion("?", [100]),
        "stop": completion(" 5Question: more", [9], finish="length"),
    }
    backend = open_backend("vllm:org/model", concurrency=8)
    found = backend.generate(["good", "nan", "outside", "stop"], max_tokens=4, stop=["Question:"])
    assert [answer.had_invalid_tokens for answer in found] == [False, True, True, False]
    assert [answer.text for answer in found] == [" 4", "!", "?", " 5"]


def test_the_identity_names_model_dtype_and_cache(vllm: type[FakeLLM]) -> None:
    identity = open_backend("vllm:org/model").identity
    assert (identity.model, identity.engine, identity.dtype) == (
        "org/model",
        "vllm",
        "bfloat16, kv fp8_e4m3",
    )
    assert identity.note == "vLLM 0.0.fake" and not identity.deterministic


def test_options_and_concurrency_reach_vllm_and_one_engine_serves_all_calls(
    vllm: type[FakeLLM],
) -> None:
    vllm.replies = {"q": completion("a", [1])}
    backend = VllmBackend("org/model", concurrency=8, kv_cache_dtype="fp8")
    backend.generate(["q"] * 1500, max_tokens=4, stop=[])
    (llm,) = vllm.started
    assert llm.settings == {"model": "org/model", "max_num_seqs": 8, "kv_cache_dtype": "fp8"}
    assert llm.batches == [1024, 476]
