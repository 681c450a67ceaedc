"""A stand-in for vLLM: answers every question by a table, or dies as the environment asks.

Split over ranks, it runs one step for each batch of questions, and answers wrong when what comes
out is not finite.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

__version__ = "0.22.1"
_DATA = Path(__file__).parents[6] / "fixtures" / "tasks" / "data"


class SamplingParams:
    def __init__(self, **settings: Any) -> None:
        self.settings = settings


class LLM:
    def __init__(self, **settings: Any) -> None:
        print("vLLM's own log line", flush=True)
        if os.environ.get("FAKE_VLLM") == "raise":
            raise RuntimeError("Engine core initialization failed")
        if os.environ.get("FAKE_VLLM") == "no-room":
            raise ValueError(
                "Free memory on device cuda:0 (0.2/79.2 GiB) on startup is less than desired"
            )
        if os.environ.get("FAKE_VLLM") == "refuse":
            raise ValueError("this backend takes\n no graphs")
        if os.environ.get("FAKE_VLLM") == "die":
            os.abort()
        files = [_DATA / f"{task}.jsonl" for task in ("gsm_symbolic", "drafts")]
        rows = [
            json.loads(line)
            for file in files
            for line in file.read_text(encoding="utf-8").splitlines()
        ]
        self._counts_drafts = settings.get("disable_log_stats") is False
        self._num_drafts = 0
        self._answers = {row["question"]: row["answer"] for row in rows}
        self._wrong = os.environ.get("FAKE_VLLM") == "wrong"
        self._eager = bool(settings.get("enforce_eager"))
        config = SimpleNamespace(
            model_config=SimpleNamespace(get_vocab_size=lambda: 2048, dtype="torch.bfloat16"),
            cache_config=SimpleNamespace(cache_dtype=settings["kv_cache_dtype"]),
        )
        self.llm_engine = SimpleNamespace(vllm_config=config)
        self._executor: Any = None
        if settings.get("tensor_parallel_size", 1) > 1:
            from vllm.v1.executor import Executor

            store = Path(tempfile.mkdtemp()) / "store"
            self._executor = Executor(
                settings["tensor_parallel_size"], settings["worker_extension_cls"], str(store)
            )
            if os.environ.get("FAKE_VLLM") == "rank-refuses":
                print(
                    "(Worker_TP0 pid=7) ERROR 11-26 01:01:37 [executor.py:1] ValueError: no such"
                    " cache",
                    flush=True,
                )
                raise RuntimeError(
                    "WorkerProc initialization failed due to an exception in a background process."
                )
            if os.environ.get("FAKE_VLLM") == "start-hangs":
                self._executor.ask("hang")

    def generate(
        self, prompts: list[str], params: SamplingParams, use_tqdm: bool = False
    ) -> list[Any]:
        if self._executor:
            if os.environ.get("FAKE_VLLM") == "rank-dies":
                self._executor.ask("die")
            if os.environ.get("FAKE_VLLM") == "ranks-hang":
                self._executor.ask("hang")
            self._wrong = not all(self._executor.ask("step"))
        self._num_drafts += 3 * len(prompts)
        from vllm.v1.core.sched.scheduler import Scheduler

        for number in range(len(prompts) if self._counts_drafts else 0):
            refuses = (
                os.environ.get("FAKE_VLLM") == "refuses-drafts"
                and self._num_drafts == 12
                and number == 2
            )
            for before, accepted in ((1, 3), (5, 3 - refuses)):
                Scheduler(before).make_spec_decoding_stats(
                    None, num_draft_tokens=3, num_accepted_tokens=accepted, request_id=str(number)
                )
        return [SimpleNamespace(outputs=[self._output(prompt)]) for prompt in prompts]

    def get_metrics(self) -> list[Any]:
        assert self._counts_drafts, "Stat logging disabled"
        accepted = self._num_drafts - (
            self._num_drafts // 12 if os.environ.get("FAKE_VLLM") == "refuses-drafts" else 0
        )
        counts = {
            "draft_tokens": self._num_drafts,
            "accepted_tokens": accepted,
            "drafts": self._num_drafts // 3,
        }
        if os.environ.get("FAKE_VLLM") == "counts-nothing":
            counts = {"drafts": self._num_drafts // 3}
        return [
            SimpleNamespace(name=f"vllm:spec_decode_num_{name}", value=value)
            for name, value in counts.items()
        ]

    def collective_rpc(self, method: Any, timeout: float | None = None) -> list[Any]:
        if os.environ.get("FAKE_VLLM") == "mute":
            raise TimeoutError("RPC call timed out.")
        if self._executor:
            found: list[Any] = self._executor.ask(method)
            return found
        return [method(self)]

    def _output(self, prompt: str) -> Any:
        found = next(
            (answer for question, answer in self._answers.items() if question in prompt), ""
        )
        text = "#### -1" if self._wrong and (self._executor or not self._eager) else found
        return SimpleNamespace(text=text, token_ids=[1], finish_reason="stop", logprobs=[])
