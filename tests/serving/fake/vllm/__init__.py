"""A stand-in for vLLM: answers every question by a table, or dies as the environment asks."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

__version__ = "0.22.1"
_DATA = Path(__file__).parents[4] / "fixtures" / "tasks" / "data" / "gsm_symbolic.jsonl"


class SamplingParams:
    def __init__(self, **settings: Any) -> None:
        self.settings = settings


class LLM:
    def __init__(self, **settings: Any) -> None:
        print("vLLM's own log line", flush=True)
        if os.environ.get("FAKE_VLLM") == "raise":
            raise RuntimeError("Engine core initialization failed")
        if os.environ.get("FAKE_VLLM") == "die":
            os.abort()
        rows = [json.loads(line) for line in _DATA.read_text(encoding="utf-8").splitlines()]
        self._answers = {row["question"]: row["answer"] for row in rows}
        self._wrong = os.environ.get("FAKE_VLLM") == "wrong"
        self._eager = bool(settings.get("enforce_eager"))
        config = SimpleNamespace(
            model_config=SimpleNamespace(get_vocab_size=lambda: 2048, dtype="torch.bfloat16"),
            cache_config=SimpleNamespace(cache_dtype=settings["kv_cache_dtype"]),
        )
        self.llm_engine = SimpleNamespace(vllm_config=config)

    def generate(self, prompts: list[str], params: SamplingParams, use_tqdm: bool = False) -> list[Any]:
        return [SimpleNamespace(outputs=[self._output(prompt)]) for prompt in prompts]

    def _output(self, prompt: str) -> Any:
        found = next((answer for question, answer in self._answers.items() if question in prompt), "")
        text = "#### -1" if self._wrong and not self._eager else found
        return SimpleNamespace(text=text, token_ids=[1], finish_reason="stop", logprobs=[])
