"""vLLM's FlashMLA metadata builder under full graphs: is the FP8 decode plan written where the
graph reads it?

The builder is vLLM's. A stand-in replaces the planning function of the CUDA extension. Like that
function, it returns new tensors each time (vllm-project/vllm#35175).
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch_poison.patterns import Poison
from vllm.config import CUDAGraphMode
from vllm.v1.attention.backends.mla import flashmla

from harness.api import Binding, ReplayedStep, Run
from mla_harness_adapters.host_parts import (
    NUM_SM_PARTS,
    PLAN_WIDTH,
    Planner,
    lazy_plans,
    made_without_init,
)
from mla_harness_adapters.releases import accepted
from mla_harness_vllm.params import VllmHostParams

MAX_REQUESTS = 64
LENGTHS = ((16, 24), (17, 25), (18, 90), (19, 91))
"""Lengths of the two requests in each step. The graph is captured in the first step."""


def run(poison: Poison, params: VllmHostParams) -> Run:
    """Build the metadata of each step.

    Observe the address of its plan and what a captured graph would read there.
    """
    planner = Planner()
    builder = _builder(poison)
    found = Run(poison.pattern)
    captured: list[tuple[str, Tensor]] = []
    with lazy_plans(flashmla), mock.patch.object(flashmla, "get_mla_metadata_dense_fp8", planner):
        for step, lengths in enumerate(LENGTHS):
            built = _plan_of(builder, lengths)
            captured = captured or built
            for (name, was), (_, now), planned in zip(
                captured, built, planner.plans[-1], strict=True
            ):
                found.evidence.append(
                    Binding(step, name, "sched_meta", was.data_ptr(), now.data_ptr())
                )
                found.evidence.append(_step(step, name, was[: len(planned)], planned))
    return found


def _builder(poison: Poison) -> Any:
    return made_without_init(
        flashmla.FlashMLAMetadataBuilder,
        num_q_heads=16,
        dcp_world_size=1,  # read since 0.25.1
        is_fp8_kvcache=True,
        compilation_config=SimpleNamespace(cudagraph_mode=CUDAGraphMode.FULL),
        cg_buf_tile_scheduler_metadata=poison.empty(
            NUM_SM_PARTS, PLAN_WIDTH, dtype=torch.int32, site="sched_meta"
        ),
        cg_buf_num_splits=poison.empty(MAX_REQUESTS + 1, dtype=torch.int32, site="sched_meta"),
    )


def _plan_of(builder: Any, lengths: tuple[int, ...]) -> list[tuple[str, Tensor]]:
    """The two tensors of the plan that the builder makes for a decode batch, with their names."""
    starts = torch.arange(len(lengths) + 1, dtype=torch.int32)
    newer = {"max_query_len": 1}  # since 0.33.0
    metadata = builder._build_decode(
        block_table_tensor=torch.zeros(len(lengths), 2, dtype=torch.int32),
        seq_lens_device=torch.tensor(lengths, dtype=torch.int32),
        max_seq_len=max(lengths),
        query_start_loc_cpu=starts,
        query_start_loc_device=starts,
        num_decode_tokens=len(lengths),
        dcp_tot_seq_lens_device=None,
        **accepted(newer, builder._build_decode),
    )
    plan = metadata.scheduler_metadata
    return [
        ("tile_scheduler_metadata", plan.tile_scheduler_metadata),
        ("num_splits", plan.num_splits),
    ]


def _step(step: int, name: str, read: Tensor, planned: Tensor) -> ReplayedStep:
    """What a replay reads at the captured address, and the plan for this step."""
    live = torch.ones(len(planned), dtype=torch.bool)
    if name == "num_splits":
        live[0] = False  # 0 in every plan
    stale = None if torch.equal(read, planned) else "sched_meta"
    return ReplayedStep(step, name, read.clone(), planned.clone(), live, stale_site=stale)
