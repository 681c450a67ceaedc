"""Faults of what is kept from step to step: a plan or a table that is found again by too little.

Each takes what an earlier step made if its key is the same. The input that the key leaves out has
changed meanwhile.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

from torch import Tensor

from harness.engine.batch import Batch
from harness.engine.kernels import Kernels
from harness.engine.runner import ModelRunner
from harness.engine.schedule.sequence import ScheduledSequence
from harness.memory.graph.launch import ACTIVE


def _kept(owner: object, key: Hashable, fresh: Any) -> Any:
    """What `owner` keeps under `key`: what it got first."""
    # A fault is a function, so what it keeps lies beside the fields of the object that it is given.
    return vars(owner).setdefault("kept", {}).setdefault(key, fresh)


def plan_by_batch_size(kernels: Kernels, seq_lens: Tensor, num_heads: int) -> Any:
    """Keep the plan of eager steps with as many requests, seq_lens [B] int32
    (flashinfer-ai/flashinfer#4014).
    """
    return _kept_plan(kernels, seq_lens, num_heads, len(seq_lens))


def plan_by_longest(kernels: Kernels, seq_lens: Tensor, num_heads: int) -> Any:
    """Keep the plan of eager steps with as many requests, seq_lens [B] int32, and the same longest
    one (NVIDIA/TensorRT-LLM#13696).
    """
    # A capture reads nothing on the host.
    longest = 0 if ACTIVE.get() else int(seq_lens.max())
    return _kept_plan(kernels, seq_lens, num_heads, (len(seq_lens), longest))


def _kept_plan(kernels: Kernels, seq_lens: Tensor, num_heads: int, key: Hashable) -> Any:
    planner = kernels.mla_decode_plan
    fresh = planner(seq_lens, num_heads=num_heads, **kernels.plan_options)
    return fresh if ACTIVE.get() else _kept(planner, key, fresh)


def table_by_request(runner: ModelRunner, ordered: list[ScheduledSequence], batch: Batch) -> Batch:
    """Keep the first blocks of each request by its number, and add new ones
    (RBLN-SW/vllm-rbln#676).
    """
    for row, item in enumerate(ordered):
        sequence = item.sequence
        blocks = _kept(runner, sequence.request, list(sequence.blocks))
        blocks += sequence.blocks[len(blocks) :]
        if batch.decode is not None and row < batch.num_decodes:
            for page in range(len(sequence.blocks)):
                batch.decode.block_table[row, page] = blocks[page]
    return batch


def table_by_lengths(runner: ModelRunner, ordered: list[ScheduledSequence], batch: Batch) -> Batch:
    """Keep the block table of decodes with the same lengths (NVIDIA/TensorRT-LLM#13696)."""
    if batch.decode is None:
        return batch
    table = _kept(runner, tuple(batch.decode.seq_lens.tolist()), batch.decode.block_table)
    return replace(batch, decode=replace(batch.decode, block_table=table))


def adapters_by_batch_size(
    runner: ModelRunner, ordered: list[ScheduledSequence], batch: Batch
) -> Batch:
    """Keep the adapters of a batch with as many tokens (vllm-project/vllm#47724)."""
    if batch.adapters is None:
        return batch
    return replace(batch, adapters=_kept(runner, len(batch.adapters), batch.adapters))
