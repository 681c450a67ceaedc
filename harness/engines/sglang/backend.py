"""SGLang in this process as a backend, through its public `Engine.generate` only."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness.accuracy.backends import Answer, Identity, OnAnswer, cut_at_stop, describe_directory, has_invalid_text
from harness.core.errors import InputError

CHUNK = 1024
"""Prompts of one `Engine.generate`. It returns all answers at its end, so a killed process loses this many."""
CACHE_TYPES = {"bf16": "auto", "fp8_e4m3": "fp8_e4m3", "fp8": "fp8_e4m3"}
"""SGLang's names for values of `--kv`."""


def open_model(path: str, *, concurrency: int, kv: str | None = None, graph: str | None = None) -> SglangBackend:
    """Start SGLang with `--kv` and `--graph` as arguments of `sglang.Engine`. Raises InputError for other values."""
    options: dict[str, Any] = {}
    if kv is not None:
        if kv not in CACHE_TYPES:
            raise InputError(f"--kv {kv}: SGLang takes {', '.join(CACHE_TYPES)}")
        options["kv_cache_dtype"] = CACHE_TYPES[kv]
    if graph not in (None, "none"):
        raise InputError(f"--graph {graph}: SGLang takes none, and its own graphs without the option")
    if graph == "none":
        options["disable_cuda_graph"] = True
    return SglangBackend({"model_path": path, "max_running_requests": concurrency, **options})


class SglangBackend:
    """One `sglang.Engine` for the whole run, so that slots of its KV cache are recycled between epochs."""

    def __init__(self, options: dict[str, Any], run_scheduler: Callable[..., None] | None = None) -> None:
        """Start the engine. `run_scheduler` is what its scheduler processes run, by default SGLang's own function."""
        path = str(options["model_path"])
        try:
            module: Any = importlib.import_module("sglang.srt.entrypoints.engine")
            version = str(importlib.import_module("sglang").__version__)
        except ImportError as error:
            raise InputError(
                f"--model sglang:{path}: SGLang cannot be imported here ({error}); install it, or use server:URL"
            ) from None
        owned = {"run_scheduler_process_func": staticmethod(run_scheduler)} if run_scheduler else {}
        self._engine: Any = type("Engine", (module.Engine,), owned)(**options)
        config = self._engine.tokenizer_manager.model_config
        self._vocab_size = int(config.vocab_size)
        dtype, cache = str(config.dtype).removeprefix("torch."), str(self._engine.server_args.kv_cache_dtype)
        card = describe_directory(Path(path)) if Path(path).is_dir() else None
        self._identity = Identity(
            model=card.name if card else path,
            engine="sglang",
            dtype=dtype if cache in ("auto", dtype) else f"{dtype}, kv {cache}",
            model_hash=card.hash if card else f"name:{path}",
            note=", ".join(filter(None, [card.note if card else "", f"SGLang {version}"])),
        )

    @property
    def identity(self) -> Identity:
        """The model as SGLang serves it. Answers are not deterministic: the batch changes the rounding of kernels."""
        return self._identity

    def generate(
        self, prompts: Sequence[str], *, max_tokens: int, stop: Sequence[str], on_answer: OnAnswer | None = None
    ) -> list[Answer]:
        """Greedy answers in the order of `prompts`. An answer with a NaN in its log probabilities is invalid."""
        params = {"temperature": 0.0, "max_new_tokens": max_tokens, "stop": [word for word in stop if word]}
        answers: list[Answer] = []
        for start in range(0, len(prompts), CHUNK):
            outputs = self._engine.generate(
                prompt=list(prompts[start : start + CHUNK]), sampling_params=params, return_logprob=True
            )
            for output in outputs:
                answers.append(self._answer(output, stop))
                if on_answer:
                    on_answer(len(answers) - 1, answers[-1])
        return answers

    def call_schedulers(self, method: str) -> None:
        """Call a method without arguments of every scheduler, in its process. Raises AssertionError if one fails."""
        self._engine.collective_rpc(method)

    def close(self) -> None:
        """End the engine's processes."""
        self._engine.shutdown()

    def _answer(self, output: dict[str, Any], stop: Sequence[str]) -> Answer:
        meta = output["meta_info"]
        finish = str((meta["finish_reason"] or {}).get("type", "stop"))
        text, _ = cut_at_stop(output["text"], stop)
        rows = [(row[0], row[1]) for row in meta["output_token_logprobs"]]
        # A NaN in the logits makes every log probability of its row NaN.
        is_bad = any(
            value is None or not math.isfinite(value) or not 0 <= token < self._vocab_size for value, token in rows
        )
        count = int(meta["completion_tokens"])
        return Answer(text, finish, count, is_bad or finish == "abort" or has_invalid_text(text, finish))
