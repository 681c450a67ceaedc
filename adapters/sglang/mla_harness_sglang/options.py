"""A case's arguments of `sglang.Engine` and its environment, and the server's command with the
same.
"""

from __future__ import annotations

import importlib.util
import json
import shlex
from pathlib import Path

from harness.api import Case
from mla_harness_adapters import base
from mla_harness_adapters.refusals import OptionErrors
from mla_harness_adapters.releases import of_release
from mla_harness_adapters.served_params import LONGEST
from mla_harness_sglang.params import SglangParams
from mla_harness_sglang.releases import GRAPH_OPTIONS, Options
from mla_harness_sglang.tables import ENGINE

KEPT_MODELS = ("deepseek_v2", "deepseek_nextn")
"""Modules of `sglang.srt.models` with the canaries' models.

SGLang imports all others too unless it is forbidden to.
"""

OPTION_ERRORS = OptionErrors(
    ENGINE.title,
    {
        "ValueError": "",
        "NotImplementedError": "",
        "AssertionError": "",
        # `ServerArgs` is a dataclass, which refuses an option that it does not know so.
        "TypeError": r"(?s).*ServerArgs\.__init__",
    },
)
"""The errors with which SGLang checks its options, in its main process and in its schedulers."""


def engine_options(params: SglangParams, graph: str) -> Options:
    """Arguments of `sglang.Engine`.

    The pool has a fixed size, so that several processes can share a GPU.
    """
    options: Options = {
        "model_path": str(params.checkpoint),
        "dtype": "bfloat16",
        "context_length": LONGEST.get(params.canary, 1024),
        "chunked_prefill_size": params.max_batched_tokens,
        "max_running_requests": params.max_num_seqs,
        "max_total_tokens": params.num_slots,
        "mem_fraction_static": 0.25,
        "page_size": params.page_size,
        "kv_cache_dtype": "auto" if params.kv == "bf16" else params.kv,
        "disable_radix_cache": not params.prefix_caching,
        "disable_overlap_schedule": not params.overlap,
        "enable_mixed_chunk": params.mixed_chunk,
        "sampling_backend": "pytorch",
        "grammar_backend": "none",
        "disable_flashinfer_autotune": True,
        "random_seed": 0,
    }
    if params.backend != "default":
        options["attention_backend"] = params.backend
    if (
        params.backend not in ("default", params.prefill_backend)
        and params.prefill_backend != "same"
    ):
        options |= {
            "prefill_attention_backend": params.prefill_backend,
            "decode_attention_backend": params.backend,
        }
    if params.canary == "dsa":
        # Its top-k kernel chooses 2,048.
        options["json_model_override_args"] = json.dumps({"index_topk": 2048})
    if params.has_module:
        # A chain of three drafts, and the token that the target chose.
        options |= {
            "speculative_algorithm": "EAGLE",
            "speculative_num_steps": 3,
            "speculative_eagle_topk": 1,
        }
        options["speculative_num_draft_tokens"] = 4
    if params.canary in ("moe", "mtp"):
        options["moe_runner_backend"] = "triton"
    if params.quantization != "none":
        options["quantization"] = params.quantization
    if params.tensor_parallel > 1:
        options |= {"tp_size": params.tensor_parallel, "disable_custom_all_reduce": True}
        options["ep_size"] = params.tensor_parallel if params.expert_parallel else 1
    if params.kv_canary != "none":
        options |= {"kv_canary": params.kv_canary, "kv_canary_real_data": "all"}
    return options | _graph_options(graph, params.capture_sizes)


def _graph_options(graph: str, sizes: tuple[int, ...]) -> Options:
    if graph == "default":
        return {}
    # Without SGLang the newest release is described.
    version = base.installed_version(ENGINE) or "99"
    return of_release(version, GRAPH_OPTIONS)(None if graph == "none" else sizes)


def environ(*, is_faulty: bool = False) -> dict[str, str]:
    """The environment of SGLang's processes.

    Only the canaries' models are imported, which saves most of the start.

    SGLang counts free pages between requests. With a fault, a wrong count does not end it before
    the answers.
    """
    return {
        "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_IDLE": "false" if is_faulty else "true",
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "SGLANG_DISABLED_MODEL_ARCHS": ",".join(other_models()),
        "SGLANG_ENABLE_JIT_DEEPGEMM": "false",
        "SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK": "1",
    }


def other_models() -> list[str]:
    """Modules of the installed SGLang with models that no canary has. Imports nothing."""
    found = importlib.util.find_spec(ENGINE.package)
    folders = (
        [Path(place) / "srt" / "models" for place in found.submodule_search_locations or ()]
        if found
        else []
    )
    modules = {file.stem for folder in folders for file in folder.glob("*.py")}
    return sorted(modules.difference(KEPT_MODELS, ("__init__", "registry")))


def serve_command(case: Case) -> str:
    """`python -m sglang.launch_server --model-path CHECKPOINT --option value …` with the options of
    the case.
    """
    params = case.params_as(SglangParams)
    words = ["python", "-m", "sglang.launch_server"]
    for name, value in engine_options(params, params.graph).items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            words += [flag] if value else []
        else:
            words += [flag, *map(str, value if isinstance(value, list) else [value])]
    return shlex.join(words)
