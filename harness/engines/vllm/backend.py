"""vLLM in this process as a backend, through its public `LLM.generate` only."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness.accuracy.backends import Answer, Identity, OnAnswer, cut_at_stop, describe_directory, has_invalid_text
from harness.core.errors import InputError
from harness.engines.vllm.objects import Completion, Vllm

_CHUNK = 1024
"""Prompts of one `LLM.generate`. It returns all answers at its end, so a killed process loses this many."""
CACHE_TYPES = {"bf16": "bfloat16", "fp8_e4m3": "fp8_e4m3", "fp8": "fp8"}
"""vLLM's names for values of `--kv`."""


def open_model(path: str, *, concurrency: int, kv: str | None = None, graph: str | None = None) -> VllmBackend:
    """Start vLLM with `--kv` and `--graph` as arguments of `vllm.LLM`. Raises InputError for other values."""
    options: dict[str, Any] = {}
    if kv is not None:
        if kv not in CACHE_TYPES:
            raise InputError(f"--kv {kv}: vLLM takes {', '.join(CACHE_TYPES)}")
        options["kv_cache_dtype"] = CACHE_TYPES[kv]
    if graph is not None:
        if graph not in ("none", "full"):
            raise InputError(f"--graph {graph}: vLLM takes none or full")
        options |= {"enforce_eager": True} if graph == "none" else {"compilation_config": {"cudagraph_mode": "FULL"}}
    return VllmBackend(path, concurrency=concurrency, **options)


class VllmBackend:
    """One `vllm.LLM` for the whole run, so that pages of its KV cache are recycled between epochs."""

    def __init__(self, path: str, *, concurrency: int = 256, **options: Any) -> None:
        try:
            self._vllm: Vllm = importlib.import_module("vllm")
        except ImportError as error:
            raise InputError(
                f"--model vllm:{path}: vLLM cannot be imported here ({error}); install it, or use server:URL"
            ) from None
        settings = {"model": path, "max_num_seqs": concurrency} | options
        self._llm = self._vllm.LLM(**settings)
        config = self._llm.llm_engine.vllm_config
        self._vocab_size = int(config.model_config.get_vocab_size())
        dtype = str(config.model_config.dtype).removeprefix("torch.")
        cache = str(config.cache_config.cache_dtype)
        card = describe_directory(Path(path)) if Path(path).is_dir() else None
        self._identity = Identity(
            model=card.name if card else path,
            engine="vllm",
            dtype=dtype if cache == "auto" else f"{dtype}, kv {cache}",
            model_hash=card.hash if card else f"name:{path}",
            note=", ".join(filter(None, [card.note if card else "", f"vLLM {self._vllm.__version__}"])),
        )

    @property
    def identity(self) -> Identity:
        """The model as vLLM serves it. Answers are not deterministic: the batch changes the rounding of kernels."""
        return self._identity

    def generate(
        self, prompts: Sequence[str], *, max_tokens: int, stop: Sequence[str], on_answer: OnAnswer | None = None
    ) -> list[Answer]:
        """Greedy answers in the order of `prompts`. An answer with a NaN in its log probabilities is invalid."""
        params = self._vllm.SamplingParams(
            temperature=0.0, max_tokens=max_tokens, stop=[word for word in stop if word], logprobs=0
        )
        answers: list[Answer] = []
        for start in range(0, len(prompts), _CHUNK):
            outputs = self._llm.generate(list(prompts[start : start + _CHUNK]), params, use_tqdm=False)
            for output in outputs:
                answers.append(self._answer(output.outputs[0], stop))
                if on_answer:
                    on_answer(len(answers) - 1, answers[-1])
        return answers

    def ask_workers(self, question: Callable[[Any], Any], timeout_seconds: float) -> list[Any]:
        """Call `question` with the worker in each worker's process. Returns the answers in the order of ranks.

        Raises RuntimeError if a worker fails, and TimeoutError if a worker in another process is too slow.
        """
        return list(self._llm.collective_rpc(question, timeout=timeout_seconds))

    def close(self) -> None:
        """Drop the engine and its memory."""
        del self._llm

    def _answer(self, output: Completion, stop: Sequence[str]) -> Answer:
        finish = str(output.finish_reason or "stop")
        text, _ = cut_at_stop(output.text, stop)
        outside = any(not 0 <= token < self._vocab_size for token in output.token_ids)
        # A NaN in the logits makes every log probability of its row NaN.
        rows = output.logprobs or ()
        not_finite = any(not math.isfinite(entry.logprob) for row in rows for entry in row.values())
        invalid = outside or not_finite or has_invalid_text(text, finish)
        return Answer(text, finish, len(output.token_ids), invalid)
