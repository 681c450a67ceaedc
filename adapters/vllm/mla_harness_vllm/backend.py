"""vLLM in this process as a backend."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from harness.api import Drafts
from mla_harness_adapters.backend import EngineBackend, Generated, options_for
from mla_harness_vllm.objects import Vllm
from mla_harness_vllm.serve import refused_drafts
from mla_harness_vllm.tables import ENGINE

CACHES = {
    "bf16": {"kv_cache_dtype": "bfloat16"},
    "fp8_e4m3": {"kv_cache_dtype": "fp8_e4m3"},
    "fp8": {"kv_cache_dtype": "fp8"},
}
"""vLLM's options for values of `--kv`."""
GRAPHS: dict[str, dict[str, object]] = {
    "none": {"enforce_eager": True},
    "full": {"compilation_config": {"cudagraph_mode": "FULL"}},
}
"""vLLM's options for values of `--graph`."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """An answer: the ids of its prompt and of its tokens, and the tokens' log probabilities."""

    prompt: list[int]
    tokens: list[int]
    logprobs: list[float]


def open_model(
    path: str, *, concurrency: int, kv: str | None = None, graph: str | None = None
) -> VllmBackend:
    """Start vLLM with `--kv` and `--graph` as arguments of `vllm.LLM`.

    Raises InputError for other values.
    """
    caches = options_for(ENGINE, "--kv", kv, CACHES)
    graphs = options_for(ENGINE, "--graph", graph, GRAPHS, "none or full")
    return VllmBackend(path, concurrency=concurrency, **caches, **graphs)


class VllmBackend(EngineBackend):
    """One `vllm.LLM`."""

    _module: Vllm

    def __init__(self, path: str, *, concurrency: int = 256, **options: Any) -> None:
        super().__init__(ENGINE, path, "vllm")
        self._llm = self._module.LLM(**{"model": path, "max_num_seqs": concurrency} | options)
        self._has_metrics = options.get("disable_log_stats") is False
        self.num_kept = 0
        """How many answers, the first ones, are kept for `decoded_and_prefilled`."""
        self._kept: list[Decoded] = []
        config = self._llm.llm_engine.vllm_config
        vocab_size = int(config.model_config.get_vocab_size())
        self.describe(vocab_size, config.model_config.dtype, config.cache_config.cache_dtype)

    def _generated(
        self, prompts: list[str], max_tokens: int, stop: list[str]
    ) -> Iterable[Generated]:
        params = self._module.SamplingParams(
            temperature=0.0, max_tokens=max_tokens, stop=stop, logprobs=0
        )
        for output in self._llm.generate(prompts, params, use_tqdm=False):
            answer = output.outputs[0]
            logprobs = [entry.logprob for row in answer.logprobs or () for entry in row.values()]
            if len(self._kept) < self.num_kept:
                kept = Decoded(list(output.prompt_token_ids), list(answer.token_ids), logprobs)
                self._kept.append(kept)
            yield answer.text, str(answer.finish_reason or "stop"), answer.token_ids, logprobs

    def drafts(self) -> Drafts | None:
        """See :meth:`EngineBackend.drafts`. vLLM counts only if `disable_log_stats` is False."""
        if not self._has_metrics:
            return None
        metrics = self._llm.get_metrics()
        names = (f"vllm:spec_decode_num_{what}_tokens" for what in ("draft", "accepted"))
        drafted, accepted = (
            sum(int(metric.value) for metric in metrics if metric.name == name) for name in names
        )
        return Drafts(drafted, accepted, tuple(refused_drafts.REFUSED))

    def decoded_and_prefilled(self) -> list[tuple[list[float], list[float]]]:
        """The log probabilities of the tokens of each kept answer, as its decodes gave them and as
        one prefill of prompt and answer gives them.

        A decode reads what earlier steps stored, a prefill what it just computed.
        """
        kept = [one for one in self._kept if one.tokens]
        params = self._module.SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
        prompts = [{"prompt_token_ids": one.prompt + one.tokens} for one in kept]
        outputs = self._llm.generate(prompts, params, use_tqdm=False)
        found = []
        for one, output in zip(kept, outputs, strict=True):
            rows = output.prompt_logprobs[len(one.prompt) :]
            prefilled = [row[token].logprob for row, token in zip(rows, one.tokens, strict=True)]
            found.append((one.logprobs, prefilled))
        return found

    def ask_workers(self, question: Callable[[Any], Any], timeout_seconds: float) -> list[Any]:
        """Call `question` with the worker in each worker's process.

        Returns the answers in the order of ranks.

        Raises RuntimeError if a worker fails, and TimeoutError if a worker in another process is
        too slow.
        """
        return list(self._llm.collective_rpc(question, timeout=timeout_seconds))

    def close(self) -> None:
        del self._llm
