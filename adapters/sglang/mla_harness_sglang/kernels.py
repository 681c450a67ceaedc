"""Kernels of SGLang and sgl_kernel, called as SGLang calls them.

Both are imported inside the functions.

SGLang has no negative slots: padded rows write to slot 0. So a writer gets only the rows with a
slot, which a captured graph cannot select.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch
from torch import Tensor

from harness.api import Refused
from mla_harness_adapters import base
from mla_harness_adapters.kernel_rows import row_lengths
from mla_harness_sglang.releases import DECODE_ATTENTION, FLASHMLA, FP8_KERNELS, MERGE_STATE
from mla_harness_sglang.tables import ENGINE

RANK = 512
NUM_KV_SPLITS = 8
"""SGLang's default, `triton_attention_num_kv_splits`."""
MIN_BLOCK_KV = 32
"""The kernel rounds the tokens of a split up to a multiple of it."""
PAGE_SIZE = 64
"""Of FlashMLA."""
SCALED_BLOCK = 128
"""Elements of a row with one scale, as DeepSeek's fp8 activations have them."""
CUTLASS_PAGE = 128
"""Slots of a page of CUTLASS MLA. Smaller pages must fill it."""
FAST_TOPK = 2048
"""What `fast_topk_v2` chooses of a row."""

on_any = functools.partial(base.why_no_kernels, ENGINE)
on_hopper = functools.partial(on_any, majors=(9,), words="Hopper (9.0)")
on_blackwell = functools.partial(on_any, majors=(10,), words="data-center Blackwell (10.0, 10.3)")


def triton_decode(
    q: Tensor,
    kv_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    *,
    scale: float,
    kv_scale: float | None = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Triton decode: q [B, S, H, 576], kv_cache [N, P, 576] bf16 or e4m3 -> [B, S, H, 512], [B, H,
    S] float32.

    block_table [B, M] int32 has the pages of each request, seq_lens [B] int32 its tokens. The
    kernel takes one query token a row, so each of S tokens becomes a request that ends at this
    token. It returns no log-sum-exp: the one here is merged from its splits.
    """
    decode = DECODE_ATTENTION.module().decode_attention_fwd
    num_requests, num_tokens, num_heads, width = q.shape
    if num_tokens > 1:
        seq_lens = row_lengths(seq_lens, num_tokens)
        block_table = block_table.repeat_interleave(num_tokens, dim=0)
    rows = num_requests * num_tokens
    starts, slots = ragged_slots(block_table, seq_lens, kv_cache.shape[1])
    out = torch.empty(rows, num_heads, RANK, dtype=q.dtype, device=q.device)
    partial = torch.empty(
        rows, num_heads, NUM_KV_SPLITS, RANK, dtype=torch.float32, device=q.device
    )
    partial_lse = torch.empty(rows, num_heads, NUM_KV_SPLITS, dtype=torch.float32, device=q.device)
    splits = torch.full((rows,), NUM_KV_SPLITS, dtype=torch.int32, device=q.device)
    latents = kv_cache.view(-1, 1, width)
    is_scaled = kv_cache.dtype == torch.float8_e4m3fn and kv_scale is not None
    factor = kv_scale if is_scaled else 1.0
    decode(
        q.reshape(rows, num_heads, width).contiguous(),
        latents,
        latents[..., :RANK],
        out,
        starts,
        slots,
        partial,
        partial_lse,
        splits,
        NUM_KV_SPLITS,
        scale,
        factor,
        factor,
        has_mla=True,
    )
    lse = (
        merged_lse(partial_lse, seq_lens)
        .reshape(num_requests, num_tokens, num_heads)
        .transpose(1, 2)
    )
    return out.reshape(num_requests, num_tokens, num_heads, RANK), lse.contiguous()


def ragged_slots(block_table: Tensor, seq_lens: Tensor, page_size: int) -> tuple[Tensor, Tensor]:
    """SGLang's form of block_table [B, M] int32 and seq_lens [B] int32: starts [B + 1] int32 of
    each request in slots [B * M * P + 1] int64.

    No host sync. The entries past the last request are unwritten, as in SGLang's buffer for graphs.
    """
    size = block_table.shape[1] * page_size
    places = torch.arange(size, device=block_table.device)
    paged = block_table.long().repeat_interleave(page_size, dim=1) * page_size + places % page_size
    starts = torch.cat([seq_lens.new_zeros(1), seq_lens.cumsum(0)]).to(torch.int32)
    slots = torch.empty(len(seq_lens) * size + 1, dtype=torch.int64, device=block_table.device)
    # What no request uses goes to the last entry, which no request reads.
    target = torch.where(
        places < seq_lens[:, None], starts[:-1, None].long() + places, len(slots) - 1
    )
    slots[target.flatten()] = paged.flatten()
    return starts, slots


def merged_lse(partial: Tensor, seq_lens: Tensor) -> Tensor:
    """The log-sum-exp [R, H] float32 of partial [R, H, S] float32, one for each split of seq_lens
    [R] int32 tokens.

    A split without tokens is unwritten and left out.
    """
    tokens = (seq_lens + NUM_KV_SPLITS - 1) // NUM_KV_SPLITS
    per_split = (tokens + MIN_BLOCK_KV - 1) // MIN_BLOCK_KV * MIN_BLOCK_KV
    is_used = (
        torch.arange(partial.shape[2], device=partial.device) * per_split[:, None]
        < seq_lens[:, None]
    )
    return partial.masked_fill(~is_used[:, None], float("-inf")).logsumexp(-1)


def flashmla_decode(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, *, scale: float, **_: Any
) -> tuple[Tensor, Tensor]:
    """Dense FlashMLA of sgl_kernel: q [B, S, H, 576], kv_cache [N, 64, 576] bf16 -> [B, S, H, 512],
    [B, H, S].

    block_table [B, M] int32 has the pages of each request, seq_lens [B] int32 its tokens.
    """
    ops = FLASHMLA.module()
    plan, num_splits = ops.get_mla_metadata(
        seq_lens, q.shape[1] * q.shape[2], 1, is_fp8_kvcache=False
    )
    out, lse = ops.flash_mla_with_kvcache(
        q=q.contiguous(),
        k_cache=kv_cache.view(-1, PAGE_SIZE, 1, q.shape[3]),
        block_table=block_table,
        cache_seqlens=seq_lens,
        head_dim_v=RANK,
        tile_scheduler_metadata=plan,
        num_splits=num_splits,
        softmax_scale=scale,
        causal=True,
    )
    return out, lse


def cutlass_decode(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, *, scale: float, **_: Any
) -> tuple[Tensor, Tensor]:
    """CUTLASS MLA of sgl_kernel: q [B, 1, H, 576], kv_cache [N, P, 576] bf16 -> [B, 1, H, 512], and
    no lse.

    block_table [B, M] int32 has the pages of each request, seq_lens [B] int32 its tokens. The
    kernel wants tables of whole 128 slots, which is SGLang's page here. As in SGLang's tables,
    entries of no page are -1.
    """
    ops = importlib.import_module("sgl_kernel")
    missing = -block_table.shape[1] % (CUTLASS_PAGE // kv_cache.shape[1])
    table = torch.nn.functional.pad(block_table, (0, missing), value=-1)
    size = ops.cutlass_mla_get_workspace_size(
        table.shape[1] * kv_cache.shape[1], len(q), num_kv_splits=1
    )
    out = ops.cutlass_mla_decode(
        q_nope=q[:, 0, :, :RANK],
        q_pe=q[:, 0, :, RANK:],
        kv_c_and_k_pe_cache=kv_cache,
        seq_lens=seq_lens,
        page_table=table,
        workspace=torch.empty(size, dtype=torch.uint8, device=q.device),
        sm_scale=scale,
        num_kv_splits=1,
    )
    return out[:, None], torch.empty(
        q.shape[0], q.shape[2], 1, dtype=torch.float32, device=q.device
    )


def align_experts(
    topk_ids: Tensor, *, num_experts: int, block_size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """SGLang's own call of sgl_kernel: topk_ids [T, k] int32 -> sorted ids, experts of blocks,
    count [1], int32.

    It has a bucket more, for the experts of other ranks, so its buffers may be longer than the
    op's.
    """
    module = importlib.import_module(
        "sglang.srt.layers.moe.moe_runner.triton_utils.moe_align_block_size"
    )
    ids, experts, count = module.moe_align_block_size(topk_ids, block_size, num_experts)
    # The op's buffers hold the worst distribution of the choices, with padding for each expert.
    choices = topk_ids.numel()
    size = min(choices * block_size, choices + num_experts * (block_size - 1))
    blocks = -(-size // block_size)
    return ids[:size], experts[:blocks], count


def merge_state(
    *states: Tensor, num_tokens_with_context: int | None = None
) -> tuple[Tensor, Tensor]:
    """The CUDA kernel `merge_state_v2`: prefix out [T, H, V], prefix lse [H, T] float32, suffix
    out, suffix lse.
    """
    return _merged(
        importlib.import_module("sgl_kernel").merge_state_v2, *states, count=num_tokens_with_context
    )


def merge_state_triton(
    *states: Tensor, num_tokens_with_context: int | None = None
) -> tuple[Tensor, Tensor]:
    """The Triton kernel. Same shapes."""
    merge = MERGE_STATE.module().merge_state_triton
    return _merged(merge, *states, count=num_tokens_with_context)


def _merged(
    merge: Any,
    prefix_out: Tensor,
    prefix_lse: Tensor,
    suffix_out: Tensor,
    suffix_lse: Tensor,
    *,
    count: int | None,
) -> tuple[Tensor, Tensor]:
    # SGLang has lse [T, H], and no count: it merges the tokens that it hands over.
    merged = slice(count)
    out = suffix_out.clone()
    lse = suffix_lse.clone()
    sides = (prefix_out[merged], prefix_lse[:, merged].t().contiguous(), suffix_out[merged])
    if out[merged].numel():
        out[merged], found = merge(*sides, suffix_lse[:, merged].t().contiguous(), None, None)
        lse[:, merged] = found.t()
    return out, lse


def write_kv(
    kv_c: Tensor,
    k_pe: Tensor,
    kv_cache: Tensor,
    slot_mapping: Tensor,
    *,
    kv_scale: float | None = None,
) -> None:
    """`set_mla_kv_buffer_triton`: kv_c [T, 512] and k_pe [T, 64] to kv_cache [N, P, 576] bf16 at
    slot_mapping [T].
    """
    live = slot_mapping >= 0
    latents = kv_cache.view(-1, 1, kv_cache.shape[-1])
    if bool(live.any()):
        # The module that defines it differs between releases; the pool imports it from there.
        write = importlib.import_module("sglang.srt.mem_cache.memory_pool").set_mla_kv_buffer_triton
        write(latents, slot_mapping[live].long(), kv_c[live].unsqueeze(1), k_pe[live].unsqueeze(1))


def quantize_fp8(x: Tensor, *, num_live: int | Tensor | None = None) -> tuple[Tensor, Tensor]:
    """`scaled_fp8_quant` with one scale: the first num_live rows of x [T, K] bf16 -> x8 [T, K]
    e4m3, scale [1].
    """
    quantize = FP8_KERNELS.module().scaled_fp8_quant
    x8 = torch.empty_like(x, dtype=torch.float8_e4m3fn)
    live = x if num_live is None else x[: int(num_live)]
    x8[: len(live)], scale = quantize(live.contiguous())
    return x8, scale.reshape(1)


def quantize_rows(x: Tensor, *, num_live: int | Tensor | None = None) -> tuple[Tensor, Tensor]:
    """`sglang_per_token_quant_fp8` of all rows of x [T, K] bf16: x8 [T, K] e4m3, scale [T, 1]."""
    x8, scale = FP8_KERNELS.module().sglang_per_token_quant_fp8(x.contiguous())
    return x8, scale


def quantize_row_blocks(
    x: Tensor, *, num_live: int | Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """`sglang_per_token_group_quant_fp8` of all rows of x [T, K] bf16: x8 [T, K] e4m3, scale [T, K
    / 128].
    """
    x8, scale = FP8_KERNELS.module().sglang_per_token_group_quant_fp8(x.contiguous(), SCALED_BLOCK)
    return x8, scale


def fast_topk(logits: Tensor, seq_lens: Tensor, *, topk: int) -> Tensor:
    """`fast_topk_v2` of logits [B * S, L] float32: positions [B * S, 2048] int32.

    seq_lens [B] int32 become a length for each row.
    """
    if topk != FAST_TOPK:
        raise Refused(f"fast_topk_v2 chooses {FAST_TOPK} positions, not {topk}")
    num_tokens = len(logits) // len(seq_lens)
    lengths = row_lengths(seq_lens, num_tokens)
    found: Tensor = importlib.import_module("sgl_kernel").fast_topk_v2(logits, lengths, topk)
    return found
