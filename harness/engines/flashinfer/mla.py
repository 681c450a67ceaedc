"""FlashInfer's MLA wrapper and its reader of NVFP4 records, called as engines call them.

The wrapper is planned on the host for each batch, then run over paged latents. FlashInfer compiles a kernel when it
first runs, for minutes without its cache package. The reader has not run on a GPU yet.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch
from torch import Tensor

from harness.core.errors import Refused
from harness.engines import base
from harness.engines.flashinfer.tables import ENGINE
from harness.kernels.ops.record_formats import RECORDS
from harness.kernels.torch.plan import num_pages

RANK = 512
WORKSPACE_BYTES = 128 << 20
"""The size that FlashInfer recommends, for partial results of split requests."""


on_ampere = functools.partial(base.why_no_kernels, ENGINE, majors=range(8, 100), words="Ampere (8.0) and later")
"""For the FA2 backend."""
on_hopper = functools.partial(base.why_no_kernels, ENGINE, majors=(9,), words="Hopper (9.0)")
"""For the FA3 backend."""


def mla_decode_fa2(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, *, scale: float, **_: Any
) -> tuple[Tensor, Tensor]:
    """Decode by FA2: q [B, S, H, 576], kv_cache [N, P, 576] bf16 -> out [B, S, H, 512], lse [B, H, S] float32."""
    return _decode("fa2", q, kv_cache, block_table, seq_lens, scale)


def mla_decode_fa3(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, *, scale: float, **_: Any
) -> tuple[Tensor, Tensor]:
    """Decode by FA3; same shapes as FA2."""
    return _decode("fa3", q, kv_cache, block_table, seq_lens, scale)


def _decode(
    backend: str, q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    wrapper_type = importlib.import_module("flashinfer.mla").BatchMLAPagedAttentionWrapper
    wrapper = wrapper_type(torch.empty(WORKSPACE_BYTES, dtype=torch.int8, device=q.device), backend=backend)
    num_requests, num_tokens, num_heads, _ = q.shape
    pages = num_pages(seq_lens)
    used = block_table[torch.arange(block_table.shape[1], device=q.device) < pages[:, None]]
    starts = torch.arange(num_requests + 1, dtype=torch.int32, device=q.device) * num_tokens
    offsets = torch.cat([pages.new_zeros(1), pages.cumsum(0)]).to(torch.int32)
    page_size, rope = kv_cache.shape[1], q.shape[3] - RANK
    try:
        wrapper.plan(
            starts, offsets, used, seq_lens, num_heads, RANK, rope, page_size, True, scale, q.dtype, kv_cache.dtype
        )
    except Exception as error:
        # Since 0.7: it depends on the lengths, so no declared shape can say it.
        if type(error).__name__ == "_BackendPlanUnsupportedError":
            raise Refused(f"FlashInfer refuses this call: {error}") from error
        raise
    flat = q.reshape(num_requests * num_tokens, num_heads, -1)
    q_nope, q_rope = flat[..., :RANK].contiguous(), flat[..., RANK:].contiguous()
    latents, rope_keys = kv_cache[..., :RANK], kv_cache[..., RANK:]
    out, lse = wrapper.run(q_nope, q_rope, latents, rope_keys, return_lse=True, return_lse_base_on_e=True)
    lse = lse.reshape(num_requests, num_tokens, num_heads).transpose(1, 2)
    return out.reshape(num_requests, num_tokens, num_heads, RANK), lse.contiguous()


OLDEST = "0.6.16"
"""The first release with the reader, of those looked at."""


def on_ampere_since_0_6_16(device: str) -> str:
    """For the reader, which is compiled for compute capability 8.0 and later."""
    reason: str = on_ampere(device)
    if reason:
        return reason
    found = str(base.installed_version(ENGINE))
    if found == "unknown" or base.release_of(found) >= base.release_of(OLDEST):
        return ""
    return f"FlashInfer {found} is older than {OLDEST}, which has nvfp4_kv_dequantize_paged"


def read_nvfp4(
    cache: Tensor, block_table: Tensor, cu_seq_lens: Tensor, *, record_format: str, scale: float | None = None
) -> Tensor:
    """`nvfp4_kv_dequantize_paged` with one head: `nvfp4_linear` records -> [T, 128], rounded to bf16."""
    read = importlib.import_module("flashinfer.quantization").nvfp4_kv_dequantize_paged
    form, (num_blocks, page_size) = RECORDS[record_format], cache.shape[:2]
    blocks, border = cache.flatten(1), page_size * form.parts[0]
    codes = blocks[:, :border].view(num_blocks, page_size, 1, -1)
    scales = blocks[:, border:].view(num_blocks, page_size, 1, -1).view(torch.float8_e4m3fn)
    factor = torch.full((1,), 1.0 if scale is None else scale, dtype=torch.float32, device=cache.device)
    lengths = cu_seq_lens.diff()
    shape = (len(lengths), block_table.shape[1] * page_size, 1, form.width)
    keys, values = (torch.empty(shape, dtype=torch.bfloat16, device=cache.device) for _ in range(2))
    read((codes, codes), (scales, scales), block_table, lengths, factor, factor, keys, values, kv_layout="NHD")
    is_token = torch.arange(shape[1], device=cache.device) < lengths[:, None]
    return keys[:, :, 0][is_token].float()
