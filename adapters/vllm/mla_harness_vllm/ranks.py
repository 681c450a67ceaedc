"""Cases of vLLM over several GPUs: options, and environment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

from harness.api import WhyNot
from mla_harness_vllm.params import ServedVllmParams

EXTENSION = "mla_harness_vllm.serve.worker.Extension"
"""Imported by vLLM in its workers. Never import it here: the import activates the plug-in."""
AMONG_RANKS = {
    # Spawned workers do not depend on the CUDA state of this process.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
    # From 0.33.0 on vLLM builds FlashInfer's all-reduce by default. It waits for NVLink multicast,
    # which is off.
    "VLLM_ALLREDUCE_USE_FLASHINFER": "0",
    # Ranks wait for a failed rank. vLLM's own limit is longer.
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "120",
    "VLLM_HOST_IP": "127.0.0.1",
}
"""Environment of workers that communicate on one host."""
NO_MULTICAST = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
}
"""NVLink multicast is off unless the environment has it on: it can hang a shared host."""


class RankOptions(TypedDict, total=False):
    """Arguments of `vllm.LLM` for several ranks."""

    tensor_parallel_size: int
    decode_context_parallel_size: int
    pipeline_parallel_size: int
    distributed_executor_backend: str
    disable_custom_all_reduce: bool
    worker_extension_cls: str


def rank_options(params: ServedVllmParams) -> RankOptions:
    """The options of several ranks: one process each, with all-reduce by NCCL only."""
    if params.num_gpus == 1:
        return {}
    return RankOptions(
        tensor_parallel_size=params.tensor_parallel,
        decode_context_parallel_size=params.decode_context_parallel,
        pipeline_parallel_size=params.pipeline_parallel,
        distributed_executor_backend="mp",
        disable_custom_all_reduce=True,
        worker_extension_cls=EXTENSION,
    )


def rank_environ(
    num_ranks: int, gpus: tuple[int, ...], inherited: Mapping[str, str]
) -> dict[str, str]:
    """Variables that `num_ranks` workers need besides the inherited ones.

    They use only `gpus`, if given.
    """
    if num_ranks == 1:
        return {}
    ours = {
        name: value for name, value in NO_MULTICAST.items() if name not in inherited
    } | AMONG_RANKS
    if gpus:
        # `gpus` are indices of the GPUs that this process sees.
        visible = [
            name.strip()
            for name in inherited.get("CUDA_VISIBLE_DEVICES", "").split(",")
            if name.strip()
        ]
        ours["CUDA_VISIBLE_DEVICES"] = ",".join(
            visible[gpu] if visible else str(gpu) for gpu in gpus
        )
    return ours


def known_to_hang(num_ranks: int, environ: Mapping[str, str]) -> str:
    """The variables of a start over several ranks that make it wait for NVLink multicast; empty if
    none does.
    """
    off = {**NO_MULTICAST, "VLLM_ALLREDUCE_USE_FLASHINFER": "0"} if num_ranks > 1 else {}
    wrong = [
        f"{name}={environ.get(name, '')} ({value})"
        for name, value in off.items()
        if environ.get(name) != value
    ]
    return (
        "known to hang where NVLink multicast does not come up (what avoids it):"
        f" {', '.join(wrong)}"
        if wrong
        else ""
    )


def why_not_split(params: ServedVllmParams, checkpoint: Path) -> WhyNot | None:
    """Why a case cannot be split over its ranks, in one sentence; None if it can."""
    num_ranks = params.tensor_parallel
    if params.num_gpus == 1:
        return None
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    heads = {
        "attention heads": config["num_attention_heads"],
        "linear-attention heads": (
            (config.get("linear_attn_config") or {}).get("num_heads", num_ranks)
        ),
    }
    for what, number in heads.items():
        if number % num_ranks:
            return WhyNot(
                f"the {number} {what} of {checkpoint.name} cannot be split over {num_ranks} GPUs"
            )
    return None
