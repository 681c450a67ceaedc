"""vLLM's kernels, called as vLLM calls them. vLLM is imported inside the functions: the import
loads CUDA extensions.

A KernelSpec names one of the `on_...` checks as `requires`. Each returns why the kernel cannot run,
by package metadata and device, or None. The kernels for Blackwell have not run on a GPU yet (see
docs/data).
"""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from harness.api import WhyNot
from mla_harness_adapters import base
from mla_harness_adapters.kernel_rows import row_lengths, slots_of_rows
from mla_harness_vllm.releases import LSE_TO_BASE_E, OLDEST
from mla_harness_vllm.tables import ENGINE

RANK = 512
NUM_KV_SPLITS = 1
"""Splits of CUTLASS MLA."""
MIN_WORK_PER_SPLIT = 512
"""Tokens of a split of the Triton decode."""
_FLASHMLA = "vllm.v1.attention.ops.flashmla"
_FLASH_ATTENTION = "vllm.vllm_flash_attn"


def on_any(device: str, majors: tuple[int, ...] | None = None, words: str = "") -> WhyNot | None:
    """For kernels built for these major compute capabilities, called `words`; by default for every
    CUDA device.
    """
    return base.why_no_kernels(ENGINE, device, majors, words) or base.why_too_old(
        ENGINE, OLDEST, "the first release with the signatures that are called"
    )


on_hopper = functools.partial(on_any, majors=(9,), words="Hopper (9.0)")
on_hopper_or_blackwell = functools.partial(
    on_any, majors=(9, 10), words="Hopper (9.0) or data-center Blackwell (10.0)"
)
on_blackwell = functools.partial(on_any, majors=(10,), words="data-center Blackwell (10.0, 10.3)")


def flashmla_plan(seq_lens: Tensor, *, num_heads: int) -> Any:
    """An empty FlashMLASchedMeta for seq_lens [B] int32.

    The first decode call with it makes the plan for all calls.
    """
    ops = importlib.import_module(_FLASHMLA)
    return ops.get_mla_metadata(seq_lens, num_heads, 1, is_fp8_kvcache=False)[0]


def flashmla_decode(
    q: Tensor,
    kv_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    *,
    scale: float,
    metadata: Any = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Dense decode: q [B, S, H, 576] and kv_cache [N, 64, 576] bf16 -> out [B, S, H, 512] bf16, lse
    [B, H, S] float32.

    block_table [B, M] int32 has the pages of each request, seq_lens [B] int32 its tokens.
    """
    ops = importlib.import_module(_FLASHMLA)
    if metadata is None:
        metadata = flashmla_plan(seq_lens, num_heads=q.shape[2])
    out, lse = ops.flash_mla_with_kvcache(
        q=q.contiguous(),
        k_cache=kv_cache.unsqueeze(-2),
        block_table=block_table,
        cache_seqlens=seq_lens,
        head_dim_v=RANK,
        tile_scheduler_metadata=metadata,
        softmax_scale=scale,
        causal=True,
        is_fp8_kvcache=False,
    )
    return out, lse


@dataclass  # without slots: the graph recorder looks for tensors in `__dict__`
class Fp8Plan:
    """Plan of the FP8 kernel."""

    tile_scheduler_metadata: Tensor
    num_splits: Tensor


def flashmla_plan_fp8(seq_lens: Tensor, *, num_heads: int) -> Fp8Plan:
    """The plan for one query token of each request of seq_lens [B] int32."""
    ops = importlib.import_module(_FLASHMLA)
    plan = ops.get_mla_metadata_dense_fp8(
        cache_seqlens=seq_lens, num_q_tokens_per_head_k=num_heads, num_heads_k=1
    )
    return Fp8Plan(*plan)


def flashmla_decode_fp8(
    q: Tensor,
    kv_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    *,
    scale: float,
    kv_scale: float | None = None,
    metadata: Any = None,
) -> tuple[Tensor, Tensor]:
    """Dense decode over e4m3 pages: q [B, S, H, 576] bf16, kv_cache [N, 64, 576] e4m3 -> out [B, S,
    H, 512] bf16, lse [B, H, S] float32.

    block_table [B, M] int32 has the pages of each request, seq_lens [B] int32 its tokens. The query
    is first quantized per tensor.
    """
    ops = importlib.import_module(_FLASHMLA)
    num_tokens = q.shape[1]
    if metadata is None or num_tokens != 1:
        metadata = flashmla_plan_fp8(seq_lens, num_heads=q.shape[2] * num_tokens)
    amax = q.float().abs().amax().clamp(min=1e-6)
    q_scale = (amax / 448.0).reshape(1)
    q8 = (q.float() / q_scale).clamp(-448, 448).to(torch.float8_e4m3fn).contiguous()
    out, lse = ops.flash_mla_with_kvcache_fp8(
        q=q8,
        k_cache=kv_cache.unsqueeze(-2),
        block_table=block_table,
        cache_seqlens=seq_lens,
        head_dim_v=RANK,
        tile_scheduler_metadata=metadata.tile_scheduler_metadata,
        num_splits=metadata.num_splits,
        softmax_scale=scale,
        causal=True,
        descale_q=q_scale,
        descale_k=torch.full((1,), 1.0 if kv_scale is None else kv_scale, device=q.device),
    )
    return out, lse


def flashmla_decode_sparse(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, *, scale: float, **_: Any
) -> tuple[Tensor, Tensor]:
    """The sparse kernel with every token of a request selected: q [B, S, H, 576] and kv_cache [N,
    64, 576] bf16 -> out [B, S, H, 512] bf16, lse [B, H, S] float32.

    block_table [B, M] int32 has the pages of each request, seq_lens [B] int32 its tokens. Indices
    of slots are -1 past the request's length. Heads are padded to a multiple of 64. Each query
    token is a row.
    """
    ops = importlib.import_module(_FLASHMLA)
    num_requests, num_tokens, num_heads, width = q.shape
    page = kv_cache.shape[1]
    columns = -(-block_table.shape[1] * page // 128) * 128
    indices = slots_of_rows(
        block_table, seq_lens, num_tokens=num_tokens, page_size=page, columns=columns
    )
    padded = q.new_zeros(num_requests * num_tokens, -(-num_heads // 64) * 64, width)
    padded[:, :num_heads] = q.reshape(-1, num_heads, width)
    out, _, lse = ops.flash_mla_sparse_fwd(
        q=padded,
        kv=kv_cache.reshape(-1, 1, width),
        indices=indices[:, None],
        sm_scale=scale,
        d_v=RANK,
    )
    out = out[:, :num_heads].reshape(num_requests, num_tokens, num_heads, RANK)
    lse = lse[:, :num_heads].reshape(num_requests, num_tokens, num_heads).transpose(1, 2)
    return out.contiguous(), lse.contiguous()


def fa3_decode(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, *, scale: float, **_: Any
) -> tuple[Tensor, Tensor]:
    """FlashAttention-3 with the latent as value: q [B, S, H, 576] and kv_cache [N, P, 576] bf16 ->
    out [B, S, H, 512] bf16, lse [B, H, S] float32.

    block_table [B, M] int32 has the pages of each request, seq_lens [B] int32 its tokens.
    """
    attention = importlib.import_module(_FLASH_ATTENTION).flash_attn_varlen_func
    num_requests, num_tokens, num_heads = q.shape[:3]
    flat = q.reshape(num_requests * num_tokens, num_heads, -1)
    starts = torch.arange(0, flat.shape[0] + 1, num_tokens, dtype=torch.int32, device=q.device)
    # See `fa3_context_attention`: without splits, here without a key, the op returns undefined
    # tensors.
    with _disable_current_modes():
        out, lse = attention(
            q=flat[..., RANK:],
            k=kv_cache[..., RANK:].unsqueeze(-2),
            v=kv_cache[..., :RANK].unsqueeze(-2),
            q_v=flat[..., :RANK],
            max_seqlen_q=num_tokens,
            cu_seqlens_q=starts,
            max_seqlen_k=block_table.shape[1] * kv_cache.shape[1],
            seqused_k=seq_lens,
            block_table=block_table,
            softmax_scale=scale,
            causal=True,
            return_softmax_lse=True,
            fa_version=3,
        )
    lse = lse.reshape(num_heads, num_requests, num_tokens).permute(1, 0, 2)
    return out.reshape(num_requests, num_tokens, num_heads, RANK), lse.contiguous()


def fa3_context_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_start_loc: Tensor,
    chunk_start_loc: Tensor,
    *,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """FA3 over a context chunk, not causal: q [T, H, 192], k [C, H, 192], v [C, H, 128] bf16 -> out
    [T, H, 128] bf16, lse [H, T] float32.

    query_start_loc [R + 1] int32 and chunk_start_loc [R + 1] int32 are where each request begins.
    """
    attention = importlib.import_module(_FLASH_ATTENTION).flash_attn_varlen_func
    longest_q = int((query_start_loc[1:] - query_start_loc[:-1]).max())
    longest_k = max(1, int((chunk_start_loc[1:] - chunk_start_loc[:-1]).max()))
    # Without splits the op returns undefined tensors, and a dispatch mode fails on these. Nothing
    # is lost: the kernel allocates in C++, which only a sweep of free memory reaches.
    with _disable_current_modes():
        out, lse = attention(
            q=q,
            k=k,
            v=v,
            max_seqlen_q=longest_q,
            max_seqlen_k=longest_k,
            cu_seqlens_q=query_start_loc,
            cu_seqlens_k=chunk_start_loc,
            softmax_scale=scale,
            causal=False,
            return_softmax_lse=True,
            fa_version=3,
        )
    return out, lse


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
    """vLLM's Triton decode: q [B, S, H, 576], kv_cache [N, P, 576] bf16 or e4m3 -> [B, S, H, 512],
    [B, H, S] float32.

    block_table [B, M] int32 has the pages of each request, seq_lens [B] int32 its tokens. The
    kernel takes one query token a row, so each of S tokens becomes a request that ends at this
    token. Outputs are not zeroed as in vLLM: only what the kernel writes is judged.
    """
    decode = importlib.import_module(
        "vllm.v1.attention.ops.triton_decode_attention"
    ).decode_attention_fwd
    num_requests, num_tokens, num_heads, width = q.shape
    if num_tokens > 1:
        seq_lens = row_lengths(seq_lens, num_tokens)
        block_table = block_table.repeat_interleave(num_tokens, dim=0)
    rows = num_requests * num_tokens
    splits = (
        1
        << (max(1, block_table.shape[1] * kv_cache.shape[1] // MIN_WORK_PER_SPLIT) - 1).bit_length()
    )
    out = torch.empty(rows, num_heads, RANK, dtype=q.dtype, device=q.device)
    lse = torch.empty(rows, num_heads, dtype=torch.float32, device=q.device)
    partial = torch.empty(rows, num_heads, splits, RANK + 1, dtype=torch.float32, device=q.device)
    cache = kv_cache.unsqueeze(2)
    one = torch.full(
        (), 1.0 if kv_scale is None else kv_scale, dtype=torch.float32, device=q.device
    )
    decode(
        q=q.reshape(rows, num_heads, width).contiguous(),
        k_buffer=cache,
        v_buffer=cache[..., :RANK],
        o=out,
        lse=lse,
        req_to_token=block_table,
        b_seq_len=seq_lens,
        attn_logits=partial,
        num_kv_splits=splits,
        sm_scale=scale,
        page_size=kv_cache.shape[1],
        k_scale=one,
        v_scale=one,
        is_mla=True,
    )
    lse = lse.reshape(num_requests, num_tokens, num_heads).transpose(1, 2)
    return out.reshape(num_requests, num_tokens, num_heads, RANK), lse.contiguous()


def cutlass_mla_decode(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, *, scale: float, **_: Any
) -> tuple[Tensor, Tensor]:
    """CUTLASS MLA of vllm._custom_ops, with heads padded to 128: q [B, 1, H, 576] and kv_cache [N,
    P, 576] bf16 -> out [B, 1, H, 512] bf16, lse [B, H, 1] float32.

    block_table [B, M] int32 has the pages of each request, seq_lens [B] int32 its tokens.
    """
    ops = importlib.import_module("vllm._custom_ops")
    num_requests, num_heads, width = q[:, 0].shape
    padded = q.new_zeros(num_requests, 128, width)
    padded[:, :num_heads] = q[:, 0]
    out = torch.empty(num_requests, 128, RANK, dtype=q.dtype, device=q.device)
    lse = torch.empty(num_requests, 128, dtype=torch.float32, device=q.device)
    num_sms = torch.cuda.get_device_properties(q.device).multi_processor_count
    longest = block_table.shape[1] * kv_cache.shape[1]
    size = ops.sm100_cutlass_mla_get_workspace_size(
        max_seq_len=longest, num_batches=num_requests, sm_count=num_sms, num_kv_splits=NUM_KV_SPLITS
    )
    workspace = torch.empty(size, dtype=torch.uint8, device=q.device)
    nope = padded[..., :RANK].contiguous()
    rope = padded[..., RANK:].contiguous()
    ops.sm100_cutlass_mla_decode(
        out=out,
        lse=lse,
        q_nope=nope,
        q_pe=rope,
        kv_c_and_k_pe_cache=kv_cache,
        seq_lens=seq_lens,
        page_table=block_table,
        workspace=workspace,
        scale=scale,
        num_kv_splits=NUM_KV_SPLITS,
    )
    return out[:, None, :num_heads].contiguous(), lse[:, :num_heads, None].contiguous()


def flashinfer_mla_decode(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, *, scale: float, **_: Any
) -> tuple[Tensor, Tensor]:
    """FlashInfer's TRT-LLM-gen decode: q [B, S, H, 576] and kv_cache [N, P, 576] bf16 -> out [B, S,
    H, 512] bf16.

    block_table [B, M] int32 has the pages of each request, seq_lens [B] int32 its tokens. It has no
    lse, so lse stays unwritten.
    """
    decode = importlib.import_module("flashinfer.decode").trtllm_batch_decode_with_kv_cache_mla
    workspace = torch.zeros(128 << 20, dtype=torch.uint8, device=q.device)
    out = decode(
        query=q,
        kv_cache=kv_cache.unsqueeze(1),
        workspace_buffer=workspace,
        qk_nope_head_dim=128,
        kv_lora_rank=RANK,
        qk_rope_head_dim=q.shape[-1] - RANK,
        block_tables=block_table,
        seq_lens=seq_lens,
        max_seq_len=block_table.shape[1] * kv_cache.shape[1],
        bmm1_scale=scale,
        bmm2_scale=1.0,
    )
    return out, torch.empty(
        q.shape[0], q.shape[2], q.shape[1], dtype=torch.float32, device=q.device
    )


def trtllm_ragged_context_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_start_loc: Tensor,
    chunk_start_loc: Tensor,
    *,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """TRT-LLM ragged prefill over a context chunk, into an unwritten output: q [T, H, 192], k [C,
    H, 192], v [C, H, 128] bf16 -> out [T, H, 128] bf16, lse [H, T] float32.

    query_start_loc [R + 1] int32 and chunk_start_loc [R + 1] int32 are where each request begins.
    """
    attention = importlib.import_module("flashinfer.prefill").trtllm_ragged_attention_deepseek
    lengths = chunk_start_loc[1:] - chunk_start_loc[:-1]
    out = torch.empty(q.shape[0], q.shape[1], v.shape[2], dtype=q.dtype, device=q.device)
    out, lse = attention(
        query=q,
        key=k,
        value=v,
        workspace_buffer=torch.zeros(128 << 20, dtype=torch.uint8, device=q.device),
        seq_lens=lengths,
        max_q_len=int((query_start_loc[1:] - query_start_loc[:-1]).max()),
        max_kv_len=max(1, int(lengths.max())),
        bmm1_scale=scale,
        bmm2_scale=1.0,
        o_sf_scale=1.0,
        batch_size=lengths.shape[0],
        window_left=-1,
        cum_seq_lens_q=query_start_loc,
        cum_seq_lens_kv=chunk_start_loc,
        enable_pdl=False,
        is_causal=False,
        return_lse=True,
        out=out,
    )
    lse = lse.transpose(0, 1).contiguous()
    to_base_e = LSE_TO_BASE_E.value(importlib.import_module("vllm.v1.attention.backends.utils"))
    return out, to_base_e(lse) if to_base_e else lse


def merge_attn_states(
    *states: Tensor, num_tokens_with_context: int | None = None
) -> tuple[Tensor, Tensor]:
    """The CUDA kernel of vllm._custom_ops: prefix out [T, H, V], prefix lse [H, T] float32, suffix
    out, suffix lse.
    """
    return merged("vllm._custom_ops", *states, count=num_tokens_with_context)


def merge_attn_states_triton(
    *states: Tensor, num_tokens_with_context: int | None = None
) -> tuple[Tensor, Tensor]:
    """The Triton kernel. Same shapes."""
    return merged(
        "vllm.v1.attention.ops.triton_merge_attn_states", *states, count=num_tokens_with_context
    )


def merged(
    module: str,
    prefix_out: Tensor,
    prefix_lse: Tensor,
    suffix_out: Tensor,
    suffix_lse: Tensor,
    *,
    count: int | None,
) -> tuple[Tensor, Tensor]:
    """What `merge_attn_states` of a module of vLLM makes of out [T, H, V] and lse [H, T] of both
    sides, as a kernel returns it. `count` tokens have a context; all if it is None.
    """
    merge: Any = importlib.import_module(module).merge_attn_states
    out = torch.empty_like(prefix_out)
    lse = torch.empty_like(prefix_lse)
    merge(
        output=out,
        prefix_output=prefix_out,
        prefix_lse=prefix_lse,
        suffix_output=suffix_out,
        suffix_lse=suffix_lse,
        output_lse=lse,
        prefill_tokens_with_context=count,
    )
    return out, lse


def write_kv(
    kv_c: Tensor,
    k_pe: Tensor,
    kv_cache: Tensor,
    slot_mapping: Tensor,
    *,
    kv_scale: float | None = None,
) -> None:
    """`concat_and_cache_mla`: kv_c [T, 512] and k_pe [T, 64] to kv_cache [N, 64, 576] at
    slot_mapping [T].

    Slots are passed as int64, as in vLLM.
    """
    ops = importlib.import_module("vllm._custom_ops")
    is_fp8 = kv_cache.dtype == torch.float8_e4m3fn
    scale = torch.full(
        (1,), 1.0 if kv_scale is None else kv_scale, dtype=torch.float32, device=kv_c.device
    )
    target = kv_cache.view(torch.uint8) if is_fp8 else kv_cache
    ops.concat_and_cache_mla(
        kv_c=kv_c,
        k_pe=k_pe,
        kv_cache=target,
        slot_mapping=slot_mapping.long(),
        kv_cache_dtype="fp8_e4m3" if is_fp8 else "auto",
        scale=scale,
    )
