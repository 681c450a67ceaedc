"""vLLM's FlashMLA metadata builder under full graphs: is the FP8 decode plan written where the graph reads it?

The builder is vLLM's; the planning function of the CUDA extension is replaced by one that returns new tensors each
time, as it does (vllm-project/vllm#35175).
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from vllm.config import CUDAGraphMode
from vllm.v1.attention.backends.mla import flashmla

from harness.engines.vllm.host.parts import accepted
from harness.engines.vllm.params import VllmHostParams
from harness.judge.run_records import Binding, ReplayedStep, Run
from harness.memory.poison.patterns import Poison

NUM_SM_PARTS = 132
PLAN_WIDTH = 8
MAX_REQUESTS = 64
PARTS_USED = 4
LENGTHS = ((16, 24), (17, 25), (18, 90), (19, 91))
"""Lengths of the two requests in each step; the graph is captured on the first."""


def run(poison: Poison, params: VllmHostParams) -> Run:
    """Build the metadata of each step; compare where its plan stands, and what a graph would read there."""
    planner = _Planner()
    builder = _builder(poison)
    found = Run(poison.pattern)
    captured: list[tuple[str, Tensor]] = []
    with (
        mock.patch.object(flashmla, "get_mla_metadata", lambda *a, **k: (flashmla.FlashMLASchedMeta(), None)),
        mock.patch.object(flashmla, "get_mla_metadata_dense_fp8", planner),
    ):
        for step, lengths in enumerate(LENGTHS):
            built = _plan_of(builder, lengths)
            captured = captured or built
            for (name, was), (_, now), planned in zip(captured, built, planner.plans[-1], strict=True):
                found.bindings.append(Binding(step, name, "sched_meta", was.data_ptr(), now.data_ptr()))
                found.replays.append(_step(step, name, was[: len(planned)], planned))
    return found


class _Planner:
    """Stands in for `get_mla_metadata_dense_fp8`: a plan in new memory each time. All are kept: no address recurs."""

    def __init__(self) -> None:
        self.plans: list[tuple[Tensor, Tensor]] = []

    def __call__(self, seq_lens: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        tiles = (torch.arange(PARTS_USED, dtype=torch.int32)[:, None] + int(seq_lens.sum())).repeat(1, PLAN_WIDTH)
        splits = torch.cat([torch.zeros(1, dtype=torch.int32), seq_lens.to(torch.int32).cumsum(0).to(torch.int32)])
        self.plans.append((tiles, splits))
        return tiles, splits


def _builder(poison: Poison) -> Any:
    """vLLM's builder as it stands after its own start, which needs a GPU to count processors."""
    builder = object.__new__(flashmla.FlashMLAMetadataBuilder)
    builder.num_q_heads = 16
    builder.dcp_world_size = 1  # asked for since 0.25.1
    builder.is_fp8_kvcache = True
    builder.compilation_config = SimpleNamespace(cudagraph_mode=CUDAGraphMode.FULL)
    buffers = {"cg_buf_tile_scheduler_metadata": (NUM_SM_PARTS, PLAN_WIDTH), "cg_buf_num_splits": (MAX_REQUESTS + 1,)}
    for name, shape in buffers.items():
        setattr(builder, name, poison.empty(*shape, dtype=torch.int32, site="sched_meta"))
    return builder


def _plan_of(builder: Any, lengths: tuple[int, ...]) -> list[tuple[str, Tensor]]:
    """The two tensors of the plan that the builder hands to the kernel for a decode batch."""
    starts = torch.arange(len(lengths) + 1, dtype=torch.int32)
    known: dict[str, Any] = {
        "block_table_tensor": torch.zeros(len(lengths), 2, dtype=torch.int32),
        "seq_lens_device": torch.tensor(lengths, dtype=torch.int32),
        "max_seq_len": max(lengths),
        "query_start_loc_cpu": starts,
        "query_start_loc_device": starts,
        "num_decode_tokens": len(lengths),
        "dcp_tot_seq_lens_device": None,
    }
    since = {"max_query_len": 1}  # 0.33.0
    metadata = builder._build_decode(**known, **accepted(since, builder._build_decode))
    plan = metadata.scheduler_metadata
    return [("tile_scheduler_metadata", plan.tile_scheduler_metadata), ("num_splits", plan.num_splits)]


def _step(step: int, name: str, read: Tensor, planned: Tensor) -> ReplayedStep:
    """What a replay reads at the captured address beside what was planned for this step."""
    live = torch.ones(len(planned), dtype=torch.bool)
    if name == "num_splits":
        live[0] = False  # it begins with 0 whatever is planned
    stale = None if torch.equal(read, planned) else "sched_meta"
    return ReplayedStep(step, name, read.clone(), planned.clone(), live, stale_site=stale)
