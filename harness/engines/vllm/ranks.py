"""What a case of vLLM needs that is split over several GPUs: options, environment, and what its ranks recorded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from harness.core.errors import HarnessError
from harness.engines.vllm.params import VllmParams
from harness.engines.vllm.serve.first_nan import FILE
from harness.memory.first_nan.report import FirstNan, first_of_ranks

EXTENSION = "harness.engines.vllm.serve.worker.Extension"
"""Imported by vLLM in its workers. Not here: the import does to its process what the environment asks."""
AMONG_RANKS = {
    # Started afresh, workers do not depend on what this process did to CUDA before.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
    # A rank that failed answers nobody, and the others wait for it: less long than vLLM would by itself.
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "120",
    "VLLM_HOST_IP": "127.0.0.1",
}
"""Environment of workers that talk to one another on one host."""
NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
"""Unless the environment says otherwise: nothing here is about NVLink multicast, and it can hang a shared host."""


def rank_options(num_ranks: int) -> dict[str, Any]:
    """Arguments of `vllm.LLM` for so many ranks: a process each, sums by NCCL alone."""
    if num_ranks == 1:
        return {}
    return {
        "tensor_parallel_size": num_ranks,
        "distributed_executor_backend": "mp",
        "disable_custom_all_reduce": True,
        "worker_extension_cls": EXTENSION,
    }


def rank_environ(num_ranks: int, gpus: tuple[int, ...], inherited: Mapping[str, str]) -> dict[str, str]:
    """What `num_ranks` workers need in their environment beyond the inherited one; `gpus` are those held for them."""
    if num_ranks == 1:
        return {}
    ours = {name: value for name, value in NO_MULTICAST.items() if name not in inherited} | AMONG_RANKS
    if gpus:
        # Numbers count what this process sees, which may be part of the machine.
        seen = [name.strip() for name in inherited.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
        ours["CUDA_VISIBLE_DEVICES"] = ",".join(seen[gpu] if seen else str(gpu) for gpu in gpus)
    return ours


def why_not_split(params: VllmParams, checkpoint: Path) -> str | None:
    """Why a case cannot be split over its ranks here, in one sentence; None when it can."""
    num_ranks = params.tensor_parallel
    if num_ranks == 1:
        return None
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    heads = {
        "attention heads": config["num_attention_heads"],
        "linear-attention heads": (config.get("linear_attn_config") or {}).get("num_heads", num_ranks),
    }
    for what, number in heads.items():
        if number % num_ranks:
            return f"the {number} {what} of {checkpoint.name} cannot be split over {num_ranks} GPUs"
    if (seen := torch.cuda.device_count()) < num_ranks:
        return f"needs {num_ranks} GPUs; this machine shows {seen}"
    return None


def collected(folder: Path, num_ranks: int, failure: str = "") -> FirstNan:
    """What the recorders of all ranks wrote into `folder`, as one: the first writer over all of them.

    `failure` says how vLLM ended, where it did not end well; then a rank may not have told. Raises HarnessError when
    one did not though nothing failed: it ran without the recorder.
    """
    told, missing = [], []
    for rank in range(num_ranks):
        file = folder / FILE.format(rank=rank)
        if file.is_file():
            told.append(FirstNan.model_validate_json(file.read_text(encoding="utf-8")))
        else:
            missing.append(rank)
    if missing and not failure:
        raise HarnessError(f"no recorder told of rank {', '.join(map(str, missing))}, and vLLM ended well")
    who = f"rank {', '.join(map(str, missing))}" if num_ranks > 1 else "vLLM"
    untold = f"{who} ended before its recorder told: {failure}" if missing else ""
    if not told:
        return FirstNan(num_ranks=num_ranks, untold=untold)
    return first_of_ranks(told).model_copy(update={"num_ranks": num_ranks, "untold": untold})
