"""vLLM's writers and readers of cache records, called as vLLM calls them.

They have not run on a GPU yet.

The cache is bytes [N, P, bytes of a record], whose blocks may lie between blocks of other layers.
vLLM is imported inside the functions, as in :mod:`mla_harness_vllm.kernels`.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

from mla_harness_vllm.kernels import RANK
from mla_harness_vllm.releases import LENGTHS_OF_RECORDS

_OPS = "vllm._custom_ops"
_ROCM = "vllm.v1.attention.ops.rocm_aiter_mla_sparse"
_INDEXER_SCALES = "ue8m0"
"""The indexer's scales are powers of two, as DeepSeek V3.2 configures it."""
_GROUP = 128
WIDTH = 576


def write_mla(
    x: Tensor,
    cache: Tensor,
    slot_mapping: Tensor,
    *,
    record_format: str,
    scale: float | None = None,
) -> None:
    """`concat_and_cache_mla`: rows x [T, 576] bf16 as `bf16`, `fp8_e4m3` or `fp8_ds_mla` records.

    They go to the slots slot_mapping [T] int64 of cache [N, P, bytes of a record] uint8.
    """
    ops = importlib.import_module(_OPS)
    typed, name = _typed(cache, record_format)
    kv_c = x[:, :RANK].contiguous()
    k_pe = x[:, RANK:].contiguous()
    ops.concat_and_cache_mla(kv_c, k_pe, typed, slot_mapping.long(), name, _scalar(scale, x))


def write_indexer(x: Tensor, cache: Tensor, slot_mapping: Tensor, **_: Any) -> None:
    """`indexer_k_quant_and_cache`: keys x [T, 128] bf16 as `indexer_planar` records.

    They go to the slots slot_mapping [T] int64 of cache [N, P, 132] uint8.
    """
    ops = importlib.import_module(_OPS)
    ops.indexer_k_quant_and_cache(x, cache, slot_mapping.long(), _GROUP, _INDEXER_SCALES)


def write_indexer_shuffled(x: Tensor, cache: Tensor, slot_mapping: Tensor, **_: Any) -> None:
    """The Triton writer that ROCm uses: keys x [T, 128] bf16 as `indexer_shuffled` records.

    They go to the slots slot_mapping [T] int64 of cache [N, P, 132] uint8.
    """
    write = importlib.import_module(_ROCM).indexer_k_quant_and_cache_triton
    write(x.contiguous(), cache, slot_mapping.long(), _GROUP, _INDEXER_SCALES)


def write_nvfp4(
    x: Tensor,
    cache: Tensor,
    slot_mapping: Tensor,
    *,
    record_format: str,
    scale: float | None = None,
) -> None:
    """`reshape_and_cache_flash` with one head x [T, 128] bf16: keys are `nvfp4_linear`, values
    `nvfp4_swizzled`.

    One side goes to the slots slot_mapping [T] int64 of cache [N, P, 72] uint8. The other side of
    the call goes to a cache of its own, with the same strides.
    """
    ops = importlib.import_module(_OPS)
    extent = (
        sum((size - 1) * stride for size, stride in zip(cache.shape, cache.stride(), strict=True))
        + 1
    )
    spare = torch.empty(extent, dtype=torch.uint8, device=x.device).as_strided(
        cache.shape, cache.stride(), 0
    )
    # vLLM writes keys and values by one call and in two layouts. The harness judges one side of it.
    caches = (cache, spare) if record_format == "nvfp4_linear" else (spare, cache)
    heads = x[:, None].contiguous()
    factor = _scalar(scale, x)
    ops.reshape_and_cache_flash(
        heads,
        heads,
        caches[0][:, :, None],
        caches[1][:, :, None],
        slot_mapping.long(),
        "nvfp4",
        factor,
        factor,
    )


def read_mla(
    cache: Tensor,
    block_table: Tensor,
    cu_seq_lens: Tensor,
    *,
    record_format: str,
    scale: float | None = None,
) -> Tensor:
    """`gather_and_maybe_dequant_cache`: `bf16` or `fp8_e4m3` records -> [T, 576], rounded to bf16.

    cache [N, P, bytes of a record] uint8 is read through block_table [B, M] int32; cu_seq_lens [B +
    1] int32 is where the tokens of each request begin.
    """
    ops = importlib.import_module(_OPS)
    typed, name = _typed(cache, record_format)
    requests = _request_of_tokens(cu_seq_lens)
    factor = _scalar(scale, cache)
    out = torch.empty(len(requests), WIDTH, dtype=torch.bfloat16, device=cache.device)
    ops.gather_and_maybe_dequant_cache(
        typed, out, block_table, cu_seq_lens, requests, len(requests), name, factor
    )
    return out.float()


def read_ds_mla(cache: Tensor, block_table: Tensor, cu_seq_lens: Tensor, **_: Any) -> Tensor:
    """`cp_gather_and_upconvert_fp8_kv_cache`: `fp8_ds_mla` records -> [T, 576], rounded to bf16.

    cache [N, P, 656] uint8 is read through block_table [B, M] int32; cu_seq_lens [B + 1] int32 is
    where the tokens of each request begin.
    """
    ops = importlib.import_module(_OPS)
    out = torch.empty(int(cu_seq_lens[-1]), WIDTH, dtype=torch.bfloat16, device=cache.device)
    # Releases differ in whether the op takes the lengths or finds them itself.
    asks = LENGTHS_OF_RECORDS.is_argument(ops.cp_gather_and_upconvert_fp8_kv_cache)
    lengths = {"seq_lens": cu_seq_lens.diff()} if asks else {}
    ops.cp_gather_and_upconvert_fp8_kv_cache(
        src_cache=cache,
        dst=out,
        block_table=block_table,
        workspace_starts=cu_seq_lens[:-1],
        batch_size=len(block_table),
        **lengths,
    )
    return out.float()


def read_indexer(cache: Tensor, block_table: Tensor, cu_seq_lens: Tensor, **_: Any) -> Tensor:
    """`cp_gather_indexer_k_quant_cache`: `indexer_planar` records -> [T, 128], dequantized here.

    cache [N, P, 132] uint8 is read through block_table [B, M] int32; cu_seq_lens [B + 1] int32 is
    where the tokens of each request begin.
    """
    ops = importlib.import_module(_OPS)
    codes, scales = _gathered_keys(cu_seq_lens)
    ops.cp_gather_indexer_k_quant_cache(cache, codes, scales, block_table, cu_seq_lens)
    return codes.float() * scales.view(torch.float32)


def read_indexer_shuffled(
    cache: Tensor, block_table: Tensor, cu_seq_lens: Tensor, *, record_format: str, **_: Any
) -> Tensor:
    """The Triton reader that ROCm uses: `indexer_shuffled` records -> [T, 128], dequantized here.

    cache [N, P, 132] uint8 is read through block_table [B, M] int32; cu_seq_lens [B + 1] int32 is
    where the tokens of each request begin. Releases in which it has a `cache_layout` read
    `indexer_planar` too.
    """
    read = importlib.import_module(_ROCM).cp_gather_indexer_k_quant_cache_triton
    codes, scales = _gathered_keys(cu_seq_lens)
    layout = {"cache_layout": "NORMAL"} if record_format == "indexer_planar" else {}
    read(cache, codes, scales, block_table, cu_seq_lens, _request_of_tokens(cu_seq_lens), **layout)
    return codes.float() * scales.view(torch.float32)


def flashmla_sparse(
    q: Tensor, kv_cache: Tensor, indices: Tensor, *, scale: float, kv_scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """FlashMLA over `fp8_ds_mla` records: q [T, H, 576] bf16, kv_cache [N, 64, 656] uint8, indices
    [T, K] int32.

    All tokens are one batch, as in vLLM's mixed mode. Heads are padded to 64 or 128, K to a
    multiple of 128 by -1.
    """
    ops = importlib.import_module("vllm.v1.attention.ops.flashmla")
    num_tokens, num_heads, width = q.shape
    # FlashMLA has kernels for 64 and for 128 heads alone.
    padded = q.new_zeros(1, num_tokens, 64 if num_heads <= 64 else 128, width)
    padded[0, :, :num_heads] = q
    columns = indices.shape[1]
    out, lse = ops.flash_mla_with_kvcache(
        q=padded,
        k_cache=kv_cache.unsqueeze(-2),
        block_table=torch.zeros(1, 1, dtype=torch.int32, device=q.device),
        head_dim_v=RANK,
        cache_seqlens=torch.full(
            (1,), kv_cache.shape[0] * kv_cache.shape[1], dtype=torch.int32, device=q.device
        ),
        tile_scheduler_metadata=ops.get_mla_metadata()[0],
        is_fp8_kvcache=True,
        indices=torch.nn.functional.pad(indices, (0, -columns % _GROUP), value=-1)[None],
        softmax_scale=scale,
    )
    return out[0, :, :num_heads].contiguous(), lse[0, :num_heads].T.contiguous()


def _typed(cache: Tensor, record_format: str) -> tuple[Tensor, str]:
    """The cache in the type of its elements, and vLLM's name of it."""
    return (
        (cache.view(torch.bfloat16), "auto") if record_format == "bf16" else (cache, record_format)
    )


def _scalar(scale: float | None, like: Tensor) -> Tensor:
    return torch.full(
        (1,), 1.0 if scale is None else scale, dtype=torch.float32, device=like.device
    )


def _request_of_tokens(cu_seq_lens: Tensor) -> Tensor:
    """The request of each token, [T] int32."""
    requests = torch.arange(len(cu_seq_lens) - 1, dtype=torch.int32, device=cu_seq_lens.device)
    return torch.repeat_interleave(requests, cu_seq_lens.diff().long())


def _gathered_keys(cu_seq_lens: Tensor) -> tuple[Tensor, Tensor]:
    """Unwritten keys [T, 128] e4m3 and scales [T, 4] uint8, as vLLM's workspace has them."""
    num_tokens = int(cu_seq_lens[-1])
    device = cu_seq_lens.device
    codes = torch.empty(num_tokens, _GROUP, dtype=torch.float8_e4m3fn, device=device)
    return codes, torch.empty(num_tokens, 4, dtype=torch.uint8, device=device)
