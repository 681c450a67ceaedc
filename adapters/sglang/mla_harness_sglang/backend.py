"""SGLang in this process as a backend."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from harness.api import Drafts
from mla_harness_adapters.backend import EngineBackend, Generated, options_for
from mla_harness_sglang.tables import ENGINE

CACHES = {
    "bf16": {"kv_cache_dtype": "auto"},
    "fp8_e4m3": {"kv_cache_dtype": "fp8_e4m3"},
    "fp8": {"kv_cache_dtype": "fp8_e4m3"},
}
"""SGLang's options for values of `--kv`."""
GRAPHS = {"none": {"disable_cuda_graph": True}}
"""SGLang's options for values of `--graph`."""


def open_model(
    path: str, *, concurrency: int, kv: str | None = None, graph: str | None = None
) -> SglangBackend:
    """Start SGLang with `--kv` and `--graph` as arguments of `sglang.Engine`.

    Raises InputError for other values.
    """
    caches = options_for(ENGINE, "--kv", kv, CACHES)
    graphs = options_for(
        ENGINE, "--graph", graph, GRAPHS, "none, and its own graphs without the option"
    )
    return SglangBackend(
        {"model_path": path, "max_running_requests": concurrency, **caches, **graphs}
    )


class SglangBackend(EngineBackend):
    """One `sglang.Engine`."""

    def __init__(
        self, options: dict[str, Any], run_scheduler: Callable[..., None] | None = None
    ) -> None:
        """Start the engine.

        `run_scheduler` is what its scheduler processes run, by default SGLang's own function.
        """
        super().__init__(ENGINE, str(options["model_path"]), "sglang.srt.entrypoints.engine")
        owned = {"run_scheduler_process_func": staticmethod(run_scheduler)} if run_scheduler else {}
        self._engine: Any = type("Engine", (self._module.Engine,), owned)(**options)
        self._drafts = Drafts(0, 0) if options.get("speculative_algorithm") else None
        self._num_answers = 0
        config = self._engine.tokenizer_manager.model_config
        self.describe(int(config.vocab_size), config.dtype, self._engine.server_args.kv_cache_dtype)

    def _generated(
        self, prompts: list[str], max_tokens: int, stop: list[str]
    ) -> Iterable[Generated]:
        params = {"temperature": 0.0, "max_new_tokens": max_tokens, "stop": stop}
        for output in self._engine.generate(
            prompt=prompts, sampling_params=params, return_logprob=True
        ):
            meta = output["meta_info"]
            finish = str((meta["finish_reason"] or {}).get("type", "stop"))
            if self._drafts is not None:
                drafted, accepted = (
                    int(meta.get(f"spec_num_{what}_drafts", 0)) for what in ("proposed", "correct")
                )
                place = f"answer {self._num_answers}: {accepted} of {drafted} accepted"
                self._drafts += Drafts(drafted, accepted, (place,) if accepted < drafted else ())
            self._num_answers += 1
            logprobs, tokens = ([row[at] for row in meta["output_token_logprobs"]] for at in (0, 1))
            yield output["text"], finish, tokens, logprobs

    def drafts(self) -> Drafts | None:
        """See :meth:`EngineBackend.drafts`. SGLang counts the drafts of each answer."""
        return self._drafts

    def call_schedulers(self, method: str) -> None:
        """Call a method without arguments of every scheduler, in its process.

        Raises AssertionError if one fails.
        """
        self._engine.collective_rpc(method)

    def close(self) -> None:
        self._engine.shutdown()
