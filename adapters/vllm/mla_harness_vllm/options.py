"""A case's options of `vllm.LLM` and its environment, and the `vllm serve` command with the
same.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable
from typing import TypedDict, cast

from harness.api import FIXTURES, Case
from mla_harness_adapters.plan import Plan
from mla_harness_adapters.refusals import OptionErrors
from mla_harness_adapters.served_params import LONGEST
from mla_harness_vllm.params import ServedVllmParams
from mla_harness_vllm.ranks import RankOptions, rank_environ, rank_options
from mla_harness_vllm.serve.settings import variables
from mla_harness_vllm.tables import ENGINE

# So begins vLLM's message if others hold the GPU.
_NOT_FOR_WANT_OF_ROOM = r"(?!Free memory on device)"
OPTION_ERRORS = OptionErrors(
    ENGINE.title,
    {
        "ValueError": _NOT_FOR_WANT_OF_ROOM,
        "NotImplementedError": _NOT_FOR_WANT_OF_ROOM,
        # A ValueError of pydantic, under its own name in a log.
        "ValidationError": _NOT_FOR_WANT_OF_ROOM,
    },
)
"""The errors with which vLLM checks its options."""


class SpeculativeConfig(TypedDict, total=False):
    """vLLM's `speculative_config`."""

    method: str
    num_speculative_tokens: int
    prompt_lookup_max: int
    model: str


class Compilation(TypedDict, total=False):
    """vLLM's `compilation_config`."""

    mode: int
    cudagraph_mode: str
    backend: str
    cudagraph_capture_sizes: list[int]


class LlmOptions(RankOptions, total=False):
    """Arguments of `vllm.LLM` beside the model and the concurrency."""

    max_model_len: int
    max_num_batched_tokens: int
    num_gpu_blocks_override: int
    kv_cache_memory_bytes: int
    gpu_memory_utilization: float
    kv_cache_dtype: str
    enable_prefix_caching: bool
    quantization: str | None
    attention_backend: str
    trust_remote_code: bool
    seed: int
    hf_overrides: dict[str, int]
    moe_backend: str
    async_scheduling: bool
    enable_expert_parallel: bool
    speculative_config: SpeculativeConfig
    disable_log_stats: bool
    enforce_eager: bool
    compilation_config: Compilation


def llm_options(params: ServedVllmParams, graph: str) -> LlmOptions:
    """Arguments of `vllm.LLM`.

    All memory sizes are fixed, so that several processes can share a GPU.
    """
    options: LlmOptions = {
        "max_model_len": LONGEST.get(params.canary, 1024),
        "max_num_batched_tokens": params.max_batched_tokens,
        "num_gpu_blocks_override": params.num_blocks,
        "kv_cache_memory_bytes": params.kv_megabytes << 20,
        "gpu_memory_utilization": 0.08,
        "kv_cache_dtype": (
            "auto" if params.kv == "bf16" else "fp8_ds_mla" if params.canary == "dsa" else "fp8"
        ),
        "enable_prefix_caching": params.prefix_caching,
        "quantization": None if params.quantization == "none" else params.quantization,
        "attention_backend": params.backend,
        "trust_remote_code": True,
        "seed": 0,
    }
    # Its options are some of these.
    options.update(cast(LlmOptions, rank_options(params)))
    if params.canary == "dsa":
        options["hf_overrides"] = {"index_topk": params.index_topk}
    if params.canary in ("moe", "mtp") and params.moe_backend != "default":
        # The default differs between releases, and some defaults compile kernels at the first
        # start.
        options["moe_backend"] = params.moe_backend
    if params.async_scheduling:
        options["async_scheduling"] = True
    if params.expert_parallel:
        options["enable_expert_parallel"] = True
    if params.speculative != "none":
        options["speculative_config"] = _drafter(params.speculative)
    if params.has_module:
        # The counts of drafts are among vLLM's metrics.
        options["disable_log_stats"] = False
    if graph == "none":
        options["enforce_eager"] = True
    elif graph != "default":
        options["compilation_config"] = _compilation(graph, params.capture_sizes)
    return options


def _drafter(method: str) -> SpeculativeConfig:
    drafter = SpeculativeConfig(method=method, num_speculative_tokens=3)
    if method == "ngram":
        drafter["prompt_lookup_max"] = 4
    elif method == "eagle":
        drafter["model"] = str(FIXTURES / "canary-eagle")
    return drafter


def _compilation(graph: str, sizes: Iterable[int]) -> Compilation:
    compilation = Compilation(mode=0, cudagraph_mode=graph.upper())
    if "piecewise" in graph:
        # vLLM splits the model in its compiler only. The pieces need not be compiled.
        compilation["mode"] = 3
        compilation["backend"] = "eager"
    compilation["cudagraph_capture_sizes"] = list(sizes)
    return compilation


HTTP_ENVIRON = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_SERVER_DEV_MODE": "1"}
"""For `vllm serve` with a script: its endpoints for sleep, reload and the prefix cache."""


def environ(params: ServedVllmParams, plan: Plan, gpus: tuple[int, ...] = ()) -> dict[str, str]:
    """The environment of a serving process and its workers: settings of vLLM and of the plug-in."""
    settings = {
        "PYTHONUNBUFFERED": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_USE_V2_MODEL_RUNNER": "1" if params.runner == "v2" else "0",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    if params.batch_invariant:
        settings["VLLM_BATCH_INVARIANT"] = "1"
    ranks = rank_environ(params.num_gpus, gpus, os.environ)
    return {**settings, **variables(plan), **ranks}


def serve_command(case: Case) -> str:
    """`VARIABLE=… vllm serve CHECKPOINT --option value …` with the options that the case hands to
    `vllm.LLM`.
    """
    params = case.params_as(ServedVllmParams)
    return (
        f"VLLM_USE_V2_MODEL_RUNNER={int(params.runner == 'v2')}"
        f" {shlex.join(['vllm', *serve_words(params)])}"
    )


def serve_words(params: ServedVllmParams) -> list[str]:
    # A server counts drafts unless it is forbidden to.
    of_server: dict[str, object] = {
        "max_num_seqs": params.max_num_seqs,
        "disable_log_stats": None,
    }
    if params.script == "sleep":
        of_server["enable_sleep_mode"] = True
    options = {**llm_options(params, params.graph), **of_server}
    words = (word for name, value in options.items() for word in _option(name, value))
    return ["serve", str(params.checkpoint), *words]


def _option(name: str, value: object) -> list[str]:
    flag = f"--{name.replace('_', '-')}"
    if value is None:
        return []
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag.removeprefix('--')}"]
    return [flag, json.dumps(value) if isinstance(value, dict | list) else str(value)]
