"""The input buffers of SGLang's decode graphs on a CPU, whatever the release."""

from __future__ import annotations

import importlib
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from mla_harness_sglang.releases import BUFFER_REGISTRY

CAPTURED = (1, 2, 4, 8)
"""Batch sizes with a graph."""


@dataclass(frozen=True)
class BufferShape:
    """What SGLang asks about the buffers in every release, by its own names."""

    seq_len_fill_value: int
    device: torch.device = torch.device("cpu")  # noqa: RUF009
    max_bs: int = CAPTURED[-1]
    max_num_token: int = CAPTURED[-1]
    cache_loc_dtype: torch.dtype = torch.int64


class GraphBuffers:
    """The buffers that a graph reads, filled for a batch by SGLang."""

    def __init__(self, fill_length: int) -> None:
        self.fill_length = fill_length
        self.rows = CAPTURED[-1]
        self._old: Any = None
        if BUFFER_REGISTRY.is_module():
            registry = importlib.import_module(BUFFER_REGISTRY.name)
            self._registry = registry.build_decode_registry(
                **asdict(BufferShape(fill_length)),
                # A shared pool of buffers would outlive this case.
                share_pool=False,
            )
        else:
            self._old = old_buffers(BufferShape(fill_length))

    def fill(self, rows: Tensor, lengths: Tensor, slots: Tensor, size: int = 0) -> int:
        """Have SGLang copy a batch into the buffers: rows, lengths and slots, each [batch] int64.

        Returns the size of the graph: the least that holds the batch.
        """
        num_rows = len(rows)
        size = size or next(size for size in CAPTURED if size >= num_rows)
        batch = SimpleNamespace(
            input_ids=torch.zeros(num_rows, dtype=torch.int64),
            req_pool_indices=rows,
            seq_lens=lengths,
            seq_lens_cpu=lengths.clone(),
            out_cache_loc=slots,
            positions=lengths - 1,
            mrope_positions=None,
            encoder_lens=None,
            mamba_track_indices=None,
            mamba_track_mask=None,
            num_token_non_padded=None,
        )
        if self._old is None:
            self._registry.fill_from(
                batch,
                raw_bs=num_rows,
                padded_bs=size,
                raw_num_tokens=num_rows,
                padded_num_tokens=size,
            )
        else:
            self._old.populate_from_forward_batch(
                forward_batch=batch,
                raw_bs=num_rows,
                raw_num_token=num_rows,
                bs=size,
                seq_len_fill_value=self.fill_length,
                require_gathered_buffer=False,
                num_tokens_per_bs=1,
                nsa_enable_prefill_cp=False,
                enable_num_token_non_padded_flag=False,
            )
        return size

    def read(self, name: str, size: int) -> Tensor:
        buffer = (
            self._registry.get_slot(name).buffer if self._old is None else getattr(self._old, name)
        )
        rows: Tensor = buffer[:size]
        return rows


def old_buffers(shape: BufferShape) -> Any:
    create = importlib.import_module(
        "sglang.srt.model_executor.cuda_graph_runner"
    ).DecodeInputBuffers.create
    return create(
        **asdict(shape),
        hidden_size=8,
        vocab_size=8,
        dtype=torch.float32,
        dp_size=1,
        pp_size=1,
        is_encoder_decoder=False,
        require_mlp_tp_gather=False,
        encoder_len_fill_value=0,
        num_tokens_per_bs=1,
        enable_mamba_track=False,
    )
