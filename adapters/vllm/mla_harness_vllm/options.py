"""A case's options of `vllm.LLM` and its environment, and the `vllm serve` command with the
same.
"""

from __future__ import annotations

import json
import os
import shlex
from typing import Any

from harness.api import FIXTURES, Case
from mla_harness_adapters.plan import Plan
from mla_harness_adapters.refusals import OptionErrors
from mla_harness_adapters.served_params import LONGEST
from mla_harness_vllm.params import VllmParams
from mla_harness_vllm.ranks import rank_environ, rank_options
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


def llm_options(params: VllmParams, graph: str) -> dict[str, Any]:
    """Arguments of `vllm.LLM`.

    All memory sizes are fixed, so that several processes can share a GPU.
    """
    options: dict[str, Any] = {
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
    options |= rank_options(params)
    if params.canary == "dsa":
        options["hf_overrides"] = {"index_topk": params.index_topk}
    if params.canary in ("moe", "mtp") and params.moe_backend != "default":
        # The default differs between releases, and some defaults compile kernels at the first
        # start.
        options["moe_backend"] = params.moe_backend
    given = {
        "async_scheduling": params.async_scheduling,
        "enable_expert_parallel": params.expert_parallel,
    }
    options |= {name: True for name, is_on in given.items() if is_on}
    if params.speculative != "none":
        more: dict[str, Any] = {
            "ngram": {"prompt_lookup_max": 4},
            "eagle": {"model": str(FIXTURES / "canary-eagle")},
        }
        drafter = {"method": params.speculative, "num_speculative_tokens": 3}
        options["speculative_config"] = {**drafter, **more.get(params.speculative, {})}
    if params.has_module:
        # The counts of drafts are among vLLM's metrics.
        options["disable_log_stats"] = False
    if graph == "none":
        return {**options, "enforce_eager": True}
    if graph == "default":
        return options
    compilation: dict[str, Any] = {"mode": 0, "cudagraph_mode": graph.upper()}
    if "piecewise" in graph:
        # vLLM splits the model in its compiler only. The pieces need not be compiled.
        compilation |= {"mode": 3, "backend": "eager"}
    return {
        **options,
        "compilation_config": {
            **compilation,
            "cudagraph_capture_sizes": list(params.capture_sizes),
        },
    }


HTTP_ENVIRON = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_SERVER_DEV_MODE": "1"}
"""For `vllm serve` with a script: its endpoints for sleep, reload and the prefix cache."""


def environ(params: VllmParams, plan: Plan, gpus: tuple[int, ...] = ()) -> dict[str, str]:
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
    params = case.params_as(VllmParams)
    return (
        f"VLLM_USE_V2_MODEL_RUNNER={int(params.runner == 'v2')}"
        f" {shlex.join(['vllm', *serve_words(params)])}"
    )


def serve_words(params: VllmParams) -> list[str]:
    # A server counts drafts unless it is forbidden to.
    options = llm_options(params, params.graph) | {
        "max_num_seqs": params.max_num_seqs,
        "disable_log_stats": None,
    }
    if params.script == "sleep":
        options["enable_sleep_mode"] = True
    words = (word for name, value in options.items() for word in _option(name, value))
    return ["serve", str(params.checkpoint), *words]


def _option(name: str, value: Any) -> list[str]:
    flag = f"--{name.replace('_', '-')}"
    if value is None:
        return []
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag.removeprefix('--')}"]
    return [flag, json.dumps(value) if isinstance(value, dict | list) else str(value)]
