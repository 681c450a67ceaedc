"""The code of the sound variants of :mod:`trust.sound.kernels`.

The first argument of each is its style.

They select live slots. The other arguments and the results are as in :mod:`harness.core.ops`. In
this module A counts requests, tokens or heads that are computed side by side: q [A, rows, D], keys
[A, n, D], `seen` [A, rows, n] bool.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor

from harness.core.ops import latent_rank
from harness.ops.align_experts.sizes import aligned_sizes
from harness.ops.mla_decode.kernels import tiled as decode
from harness.ops.mla_decode_plan.kernels import tiled as plan
from harness.ops.mla_decode_sparse.kernels.gather import gather_slots
from harness.ops.parts import block_codes as quantize
from harness.ops.parts.block_formats import FORMATS, num_scale_rows
from harness.ops.parts.split_plan import MAX_SPLITS, SplitPlan, num_pages
from harness.ops.quantize_blocks.kernels import dense as blocks_kernel
from harness.ops.quantize_blocks.kernels.dense import empty_scales, scale_rows
from harness.ops.quantize_fp8.kernels.dense import live_magnitudes
from harness.ops.read_records.kernels import dense as reading_kernel
from harness.ops.route_experts.kernels.dense import route_experts_live
from harness.ops.write_records.kernels import dense as writing_kernel
from trust.sound.kernels import Style

_MINUS_INF = -math.inf
_LOG2_E = math.log2(math.e)


def mla_decode(
    style: Style,
    q: Tensor,
    kv_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    *,
    scale: float,
    kv_scale: float | Tensor | None = None,
    metadata: SplitPlan | None = None,
    window: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Decode by requests, in the pieces of the style or of a plan."""
    if style.follows_plan and not style.writes_empty:
        inputs = (q, kv_cache, block_table, seq_lens)
        return decode.mla_decode(
            *inputs, scale=scale, kv_scale=kv_scale, metadata=metadata, window=window
        )
    num_requests, num_query, num_heads, head_dim = q.shape
    out = torch.empty(num_requests, num_query, num_heads, latent_rank(head_dim), dtype=q.dtype)
    lse = torch.empty(num_requests, num_heads, num_query, dtype=torch.float32)
    largest = float(q.abs().amax())
    # Side by side, requests would take the memory of the longest.
    for b, length in enumerate(seq_lens.tolist()):
        positions = torch.arange(length)
        limits = length + torch.arange(1 - num_query, 1)[:, None]
        seen, live = positions < limits, torch.ones_like(positions, dtype=torch.bool)
        if window is not None:
            # Pages in front of the window may have been given away.
            seen &= positions >= limits - window
            live = positions >= limits[0] - window
        size = kv_cache.shape[1]
        pages = torch.where(live, block_table[b].long()[positions // size], 0)
        slots = pages * size + positions % size
        keys = gather_slots(kv_cache, slots).masked_fill(~live[:, None], 0.0)[None]
        rows = seen.repeat_interleave(num_heads, dim=0)[None]
        queries = q[b].flatten(0, 1)[None]
        got, got_lse = _latent_attention(
            style, queries, keys, rows, scale, kv_scale, kv_cache.dtype, largest
        )
        written = (
            torch.ones_like(limits[:, 0], dtype=torch.bool)
            if style.writes_empty
            else limits[:, 0] > 0
        )
        out[b] = torch.where(written[:, None, None], got.view(out[b].shape).to(out.dtype), out[b])
        lse[b] = torch.where(written, got_lse.view(num_query, num_heads).T, lse[b])
    return out, lse


def mla_decode_plan(style: Style, seq_lens: Tensor, *, num_heads: int) -> SplitPlan:
    """Pieces of equal size in each request, not in the batch."""
    pages = num_pages(seq_lens)[:, None]
    cuts = min(style.splits, MAX_SPLITS)
    work = torch.empty(len(seq_lens), MAX_SPLITS, 3, dtype=torch.int32)
    num_splits = torch.empty(len(seq_lens), dtype=torch.int32)
    size = (pages + cuts - 1).div(cuts, rounding_mode="floor")
    begin = torch.arange(MAX_SPLITS) * size
    end = torch.minimum(begin + size, pages)
    used = begin < end
    plan.write_items(work, begin, end, used)
    num_splits.copy_(used.sum(dim=1))
    return SplitPlan(work.view(-1, 3), num_splits)


def mla_decode_sparse(
    style: Style,
    q: Tensor,
    kv_cache: Tensor,
    indices: Tensor,
    *,
    scale: float,
    kv_scale: float | Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention of each token to its slots."""
    num_tokens, num_heads, head_dim = q.shape
    out = torch.empty(num_tokens, num_heads, latent_rank(head_dim), dtype=q.dtype)
    lse = torch.empty(num_tokens, num_heads, dtype=torch.float32)
    chosen = indices >= 0
    keys = gather_slots(kv_cache, torch.where(chosen, indices, 0).long()).masked_fill(
        ~chosen[..., None], 0.0
    )
    seen = chosen[:, None].expand(-1, num_heads, -1)
    largest = float(q.abs().amax())
    got, got_lse = _latent_attention(style, q, keys, seen, scale, kv_scale, kv_cache.dtype, largest)
    written = (chosen.any(dim=1) | style.writes_empty)[:, None]
    out.copy_(torch.where(written[..., None], got.to(out.dtype), out))
    lse.copy_(torch.where(written, got_lse, lse))
    return out, lse


def context_attention(
    style: Style,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_start_loc: Tensor,
    chunk_start_loc: Tensor,
    *,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Attention of each request's tokens to its part of the chunk, by heads."""
    num_tokens, num_heads, _ = q.shape
    out = torch.empty(num_tokens, num_heads, v.shape[-1], dtype=q.dtype)
    lse = torch.empty(num_heads, num_tokens, dtype=torch.float32)
    queries, keys = query_start_loc.tolist(), chunk_start_loc.tolist()
    for request in range(len(queries) - 1):
        rows, part = slice(*queries[request : request + 2]), slice(*keys[request : request + 2])
        if part.start == part.stop:
            lse[:, rows] = math.inf if style.plus_inf else _MINUS_INF
            continue
        queries_of, keys_of, values_of = (
            x.float().transpose(0, 1) for x in (q[rows], k[part], v[part])
        )
        seen = torch.ones(1, 1, keys_of.shape[1], dtype=torch.bool)
        got, lse[:, rows] = _attend(
            style, queries_of, keys_of, values_of, seen, scale, q.dtype, steps=False
        )
        out[rows] = got.transpose(0, 1).to(out.dtype)
    return out, lse


def merge_attn_states(
    style: Style,
    prefix_out: Tensor,
    prefix_lse: Tensor,
    suffix_out: Tensor,
    suffix_lse: Tensor,
    *,
    num_tokens_with_context: int | None = None,
) -> tuple[Tensor, Tensor]:
    """The weight of a side is a sigmoid of the difference of both lse, or an exponential over their
    sum.
    """
    out = torch.empty(prefix_out.shape, dtype=prefix_out.dtype)
    lse = torch.empty_like(prefix_lse)
    merged = len(out) if num_tokens_with_context is None else num_tokens_with_context
    out[merged:], lse[:, merged:] = suffix_out[merged:], suffix_lse[:, merged:]
    logs = [
        side[:, :merged].masked_fill(side[:, :merged].isinf(), _MINUS_INF)
        for side in (prefix_lse, suffix_lse)
    ]
    values = [side[:merged].float() for side in (prefix_out, suffix_out)]
    if style.backwards:
        logs.reverse()
        values.reverse()
    first, second = logs
    total = torch.logaddexp(first, second)
    shift = total.masked_fill(total == _MINUS_INF, 0.0)
    weights = [(_exp(style, log - shift)).T[..., None] for log in logs]
    if style.reciprocal:
        difference = (second - first).nan_to_num(nan=0.0, neginf=_MINUS_INF, posinf=math.inf)
        weights[0] = torch.where(
            (total == _MINUS_INF).T[..., None], 0.0, (1 / (1 + difference.exp())).T[..., None]
        )
    parts = [torch.where(w == 0, 0.0, value * w) for w, value in zip(weights, values, strict=True)]
    out[:merged], lse[:, :merged] = (parts[0] + parts[1]).to(out.dtype), total
    return out, lse


def write_kv(
    style: Style,
    kv_c: Tensor,
    k_pe: Tensor,
    kv_cache: Tensor,
    slot_mapping: Tensor,
    *,
    kv_scale: float | Tensor | None = None,
) -> None:
    """Latent and rope part are stored separately, tokens in any order."""
    kept = (slot_mapping >= 0).nonzero().flatten()
    kept = kept.flip(0) if style.backwards else kept
    size = kv_cache.shape[1]
    block, offset = slot_mapping[kept] // size, slot_mapping[kept] % size
    for rows, columns in ((kv_c, slice(0, kv_c.shape[1])), (k_pe, slice(kv_c.shape[1], None))):
        if kv_cache.dtype == torch.float8_e4m3fn:
            stored = _e4m3(
                _divided(
                    style, rows[kept].float(), torch.tensor(1.0 if kv_scale is None else kv_scale)
                )
            )
            kv_cache.view(torch.uint8)[block, offset, columns] = stored.view(torch.uint8)
        else:
            kv_cache[block, offset, columns] = rows[kept].to(kv_cache.dtype)


def quantize_fp8(
    style: Style, x: Tensor, *, num_live: int | Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The maximum is taken by columns or by rows first."""
    amax = live_magnitudes(x, num_live).amax(dim=int(style.backwards)).amax().reshape(1)
    x8, scale = torch.empty(x.shape, dtype=torch.float8_e4m3fn), torch.empty(1)
    scale.copy_(torch.where(amax == 0, 1.0, _divided(style, amax, torch.tensor(448.0))))
    x8.copy_(_e4m3(_divided(style, x.float(), scale)))
    return x8, scale


def route_experts(
    style: Style, logits: Tensor, *, num_experts_per_tok: int, num_live: int | Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Softmax over all experts and then a choice, or the reverse.

    The ids of a token come in any order.
    """
    if not style.logits_first:
        ids, weights = route_experts_live(
            logits, num_experts_per_tok=num_experts_per_tok, num_live=num_live
        )
        return (ids.flip(1), weights.flip(1)) if style.backwards else (ids, weights)
    top, chosen = logits.float().topk(num_experts_per_tok, dim=-1)
    ids, weights = torch.empty(chosen.shape, dtype=torch.int32), torch.empty(top.shape)
    live = torch.arange(len(ids))[:, None] < (len(ids) if num_live is None else num_live)
    ids.copy_(torch.where(live, chosen.to(ids.dtype), ids))
    weights.copy_(torch.where(live, top.softmax(dim=-1), weights))
    return ids, weights


def quantize_blocks(
    style: Style, x: Tensor, expert_offsets: Tensor, *, block_format: str
) -> tuple[Tensor, Tensor]:
    """Division by scales, or products with their reciprocals, which decide ties differently."""
    form = FORMATS[block_format]
    if form.scale == "e8m0" or not style.reciprocal:
        return blocks_kernel.quantize_blocks(x, expert_offsets, block_format=block_format)
    offsets = expert_offsets.tolist()
    counts = [end - start for start, end in pairwise(offsets)]
    blocks = x[: offsets[-1]].float().view(offsets[-1], -1, form.block)
    scale = (blocks.abs().amax(dim=-1) * torch.tensor(1 / form.element_max)).clamp(max=448.0)
    codes = scale.to(torch.float8_e4m3fn)
    inverse = torch.where(codes.float() == 0, 0.0, 1 / codes.float())
    rows = scale_rows(len(x), offsets)[: offsets[-1]]
    scales = empty_scales(num_scale_rows(counts), codes.shape[1], x.device)
    scales[rows] = codes.view(torch.uint8)
    values = torch.empty(len(x), x.shape[1] // form.codes_per_byte, dtype=torch.uint8)
    # Scaled numbers have scale 1, whose code is 0x38.
    ones = torch.full_like(scales[:1, :1], 0x38).expand(len(blocks), blocks.shape[1])
    values[: offsets[-1]] = quantize.element_codes(
        blocks * inverse[..., None], ones.contiguous(), form
    )
    return values, scales


def align_experts(
    style: Style, topk_ids: Tensor, *, num_experts: int, block_size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Expert by expert.

    The choices of a run come in any order, and memory behind the count may be written.
    """
    choices = topk_ids.flatten()
    size, blocks = aligned_sizes(len(choices), num_experts, block_size)
    sorted_ids, expert_ids = (torch.empty(length, dtype=torch.int32) for length in (size, blocks))
    end = 0
    for expert in range(num_experts):
        run = (choices == expert).nonzero().flatten().int()
        start, end = end, end + -(-len(run) // block_size) * block_size
        sorted_ids[start:end] = len(choices)
        sorted_ids[start : start + len(run)] = run.flip(0) if style.backwards else run
        expert_ids[start // block_size : end // block_size] = expert
    if style.writes_empty:
        sorted_ids[end:], expert_ids[end // block_size :] = len(choices), -1
    return sorted_ids, expert_ids, torch.tensor([end], dtype=torch.int32)


def write_records(
    style: Style,
    x: Tensor,
    cache: Tensor,
    slot_mapping: Tensor,
    *,
    record_format: str,
    scale: float | None = None,
) -> None:
    """Tokens one by one and in any order.

    A division by the scale may be a product with its reciprocal.
    """
    if scale is not None and style.reciprocal and record_format == "fp8_e4m3":
        x, scale = x.float() * (1 / scale), None
    kept = (slot_mapping >= 0).nonzero().flatten().tolist()
    for token in reversed(kept) if style.backwards else kept:
        slots = slot_mapping[token : token + 1]
        writing_kernel.write_records(
            x[token : token + 1], cache, slots, record_format=record_format, scale=scale
        )


def read_records(
    style: Style,
    cache: Tensor,
    block_table: Tensor,
    cu_seq_lens: Tensor,
    *,
    record_format: str,
    scale: float | None = None,
) -> Tensor:
    """Request by request.

    The scale of the cache multiplies rows last, and rows may be rounded to bfloat16.
    """
    ends, factor = cu_seq_lens.tolist(), 1.0 if scale is None else scale
    rows = [
        reading_kernel.read_records(
            cache,
            block_table[i : i + 1],
            cu_seq_lens[i : i + 2] - start,
            record_format=record_format,
        )
        for i, start in enumerate(ends[:-1])
    ]
    out = torch.cat(rows) * factor
    return out.bfloat16().float() if style.record_products == "bf16" else out


def _latent_attention(
    style: Style,
    q: Tensor,
    keys: Tensor,
    seen: Tensor,
    scale: float,
    kv_scale: float | Tensor | None,
    cache_dtype: torch.dtype,
    largest: float,
) -> tuple[Tensor, Tensor]:
    """Attention of q [A, rows, D] to unscaled latents [A, n, D] float32: out [A, rows, R], lse [A,
    rows] float32.

    `largest` is the largest element of the queries of the batch, which share a scale.
    """
    q_dtype, unit, after = q.dtype, 1.0, 1.0
    is_scaled = cache_dtype == torch.float8_e4m3fn
    factor = float(kv_scale) if is_scaled and kv_scale is not None else 1.0
    q, is_fp8 = q.float(), is_scaled and q_dtype == torch.bfloat16
    if is_fp8 and style.products == "fp8":
        unit = largest / 448 or 1.0
        q, after = _e4m3(q / unit).float() * unit, factor
    elif is_fp8 and style.products == "bf16":
        keys = (keys * factor).bfloat16().float()
    else:
        keys = keys * factor
    values = keys[..., : latent_rank(keys.shape[-1])]
    out, lse = _attend(
        style, q, keys, values, seen, scale * after, q_dtype, steps=True, is_fp8=is_fp8
    )
    return out * after, lse


def _attend(
    style: Style,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seen: Tensor,
    scale: float,
    dtype: torch.dtype,
    *,
    steps: bool,
    is_fp8: bool = False,
) -> tuple[Tensor, Tensor]:
    """q [A, rows, D], k [A, n, D], v [A, n, V] float32 -> out [A, rows, V], lse [A, rows] float32.

    `dtype` is the query's own, `steps` allows the roundings of partial results and sums.
    """
    is_bf16, missing = (
        dtype == torch.bfloat16,
        -k.shape[1] % style.splits or style.splits * (not k.shape[1]),
    )
    k, v = (torch.nn.functional.pad(rows, (0, 0, 0, missing)) for rows in (k, v))
    seen = torch.nn.functional.pad(seen, (0, missing))
    if style.backwards:
        k, v, seen = k.flip(1), v.flip(1), seen.flip(2)
    scores = _scores(style, q, k, scale).masked_fill(~seen, _MINUS_INF)
    scores = scores.view(*scores.shape[:2], style.splits, -1)
    top = scores.amax(dim=3, keepdim=True)
    top = top.masked_fill(top == _MINUS_INF, 0.0)
    p = _exp(style, scores - top)
    rounded = p.bfloat16().float() if is_bf16 and style.bf16_probabilities else p
    if is_fp8 and style.products == "fp8":
        rounded = _e4m3(p).float()
    total = (rounded if steps and is_bf16 and not is_fp8 and style.bf16_sums else p).sum(dim=3)
    out = torch.einsum("arsm,asmv->arsv", rounded, v.view(len(v), style.splits, -1, v.shape[2]))
    out = out / torch.where(total == 0, 1.0, total)[..., None]
    if steps and is_bf16 and style.bf16_partials:
        out = out.bfloat16().float()
    logs = top[..., 0] + total.log()
    lse = logs.logsumexp(dim=2)
    weights = _exp(style, logs - lse.masked_fill(lse == _MINUS_INF, 0.0)[..., None])
    return (out * weights[..., None]).sum(dim=2), lse


def _scores(style: Style, q: Tensor, k: Tensor, scale: float) -> Tensor:
    if style.scale_query:
        q, scale = q * scale, 1.0
    parts = zip(q.chunk(style.depth, dim=2), k.chunk(style.depth, dim=2), strict=True)
    first, *others = (torch.bmm(queries, keys.transpose(1, 2)) for queries, keys in parts)
    return sum(others, first) * scale


def _exp(style: Style, x: Tensor) -> Tensor:
    return torch.exp2(x * _LOG2_E) if style.base_2 else x.exp()


def _divided(style: Style, x: Tensor, by: Tensor) -> Tensor:
    return x * (1 / by) if style.reciprocal else x / by


def _e4m3(x: Tensor) -> Tensor:
    return x.clamp(-448.0, 448.0).to(torch.float8_e4m3fn)
