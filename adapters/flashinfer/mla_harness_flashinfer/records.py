"""FlashInfer's reader of NVFP4 records."""

from __future__ import annotations

import importlib

import torch
from torch import Tensor

from harness.api import WhyNot
from mla_harness_adapters import base
from mla_harness_flashinfer.mla import on_ampere
from mla_harness_flashinfer.tables import ENGINE

OLDEST = "0.6.16"
"""The first release with the reader, of those looked at."""
WIDTH = 128
"""Elements of a record of `nvfp4_linear`."""
CODE_BYTES = WIDTH // 2
"""Bytes of its e2m1 codes, two to a byte; its scales lie behind the codes of the whole page."""


def on_ampere_since_0_6_16(device: str) -> WhyNot | None:
    """For the reader, which is compiled for compute capability 8.0 and later."""
    return on_ampere(device) or base.why_too_old(
        ENGINE, OLDEST, "which has nvfp4_kv_dequantize_paged"
    )


def read_nvfp4(
    cache: Tensor,
    block_table: Tensor,
    cu_seq_lens: Tensor,
    *,
    record_format: str,
    scale: float | None = None,
) -> Tensor:
    """`nvfp4_kv_dequantize_paged` with one head: `nvfp4_linear` records -> [T, 128], rounded to
    bf16.

    cache [N, P, 72] uint8 is read through block_table [B, M] int32; cu_seq_lens [B + 1] int32 is
    where the tokens of each request begin.
    """
    read = importlib.import_module("flashinfer.quantization").nvfp4_kv_dequantize_paged
    num_blocks, page_size = cache.shape[:2]
    blocks = cache.flatten(1)
    border = page_size * CODE_BYTES
    codes = blocks[:, :border].view(num_blocks, page_size, 1, -1)
    scales = blocks[:, border:].view(num_blocks, page_size, 1, -1).view(torch.float8_e4m3fn)
    factor = torch.full(
        (1,), 1.0 if scale is None else scale, dtype=torch.float32, device=cache.device
    )
    lengths = cu_seq_lens.diff()
    shape = (len(lengths), block_table.shape[1] * page_size, 1, WIDTH)
    keys, values = (torch.empty(shape, dtype=torch.bfloat16, device=cache.device) for _ in range(2))
    read(
        (codes, codes),
        (scales, scales),
        block_table,
        lengths,
        factor,
        factor,
        keys,
        values,
        kv_layout="NHD",
    )
    is_token = torch.arange(shape[1], device=cache.device) < lengths[:, None]
    return keys[:, :, 0][is_token].float()
