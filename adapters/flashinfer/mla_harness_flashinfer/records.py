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
    """Read records of `nvfp4_linear` by FlashInfer's `nvfp4_kv_dequantize_paged`, with one head.

    cache [N, P, Y] uint8, block_table [B, M] int32, cu_seq_lens [B + 1] int32 -> [T, 128] float32,
    rounded to bf16. Values are multiplied by `scale`, or by 1 without one.
    """
    read = importlib.import_module("flashinfer.quantization").nvfp4_kv_dequantize_paged
    num_blocks, page_size = cache.shape[:2]
    # In a page the codes of all its tokens lie first, and then their scales.
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
    # The reader takes keys and values. A record is given as both, and what was read as keys is
    # used.
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
