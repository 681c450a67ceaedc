"""Right kernels with unusual choices that were written without a look at the cases: other orders,
types, bases, and what they leave where nothing is promised.
"""

from __future__ import annotations

import math
from typing import Any, get_args

import torch
from torch import Tensor

from harness.core.call_words import RecordFormat
from harness.core.ops import latent_rank
from trust.planted.attention import decode, paged
from trust.planted.plant import planted, right

FORMATS = get_args(RecordFormat)


@planted("mla_decode", takes=("window",), is_legal=True)
def decoded_in_float64_by_base_2(
    q: Tensor,
    kv_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    *,
    scale: float,
    kv_scale: float | None = None,
    window: int | None = None,
    metadata: object = None,
) -> Any:
    """Powers of 2 in float64, from the last key to the first."""
    batch, tokens, heads, width = q.shape
    rank = latent_rank(width)
    out = torch.empty(batch, tokens, heads, rank, dtype=q.dtype)
    lse = torch.empty(batch, heads, tokens)
    is_scaled = kv_cache.dtype == torch.float8_e4m3fn and kv_scale is not None
    factor = kv_scale if is_scaled and kv_scale is not None else 1.0
    for b, length in enumerate(seq_lens.tolist()):
        if not length:
            continue
        at = torch.arange(length).flip(0)
        keys = paged(kv_cache, block_table[b], at).double() * factor
        scores = torch.einsum("shd,nd->hsn", q[b].double(), keys) * (scale / math.log(2))
        last = length - tokens + torch.arange(tokens)[:, None]
        hidden = at > last
        if window is not None:
            hidden = hidden | (at <= last - window)
        scores = scores.masked_fill(hidden, float("-inf"))
        most = scores.amax(-1, keepdim=True)
        weights = (scores - most).exp2()
        total = weights.sum(-1, keepdim=True)
        out[b] = torch.einsum("hsn,nr->shr", weights / total, keys[:, :rank]).to(q.dtype)
        lse[b] = ((total.log2() + most) * math.log(2))[..., 0].float()
    return out, lse


@planted("mla_decode", takes=("window",), is_legal=True)
def nan_for_empty_requests(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, **keywords: Any
) -> Any:
    """Rows of empty requests are NaN: 0 divided by 0."""
    out, lse = right("mla_decode", q, kv_cache, block_table, seq_lens, **keywords)
    out[seq_lens == 0] = float("nan")
    lse[seq_lens == 0] = float("nan")
    return out, lse


@planted("mla_decode", takes=("window",), is_legal=True)
def one_head_after_another(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, **keywords: Any
) -> Any:
    """A call for each head, and the results side by side."""
    keywords.pop("metadata", None)
    parts = [
        decode(q[:, :, head : head + 1], kv_cache, block_table, seq_lens, **keywords)
        for head in range(q.shape[2])
    ]
    return torch.cat([out for out, _ in parts], dim=2), torch.cat([lse for _, lse in parts], dim=1)


@planted("mla_decode", takes=("window",), is_legal=True)
def results_in_a_larger_buffer(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, **keywords: Any
) -> Any:
    """The results are the first rows of larger buffers."""
    out, lse = right("mla_decode", q, kv_cache, block_table, seq_lens, **keywords)
    batch = len(out)
    large = torch.empty(batch + 3, *out.shape[1:], dtype=out.dtype)
    large_lse = torch.empty(batch + 3, *lse.shape[1:])
    large[:batch], large_lse[:batch] = out, lse
    return large[:batch], large_lse[:batch]


@planted("mla_decode_sparse", is_legal=True)
def lists_are_sorted(q: Tensor, kv_cache: Tensor, indices: Tensor, **keywords: Any) -> Any:
    """Lists are sorted first, so that holes stand in front."""
    return right("mla_decode_sparse", q, kv_cache, indices.sort(dim=1).values, **keywords)


@planted("mla_decode_sparse", is_legal=True)
def one_token_after_another(q: Tensor, kv_cache: Tensor, indices: Tensor, **keywords: Any) -> Any:
    """A call for each token, with its list alone."""
    parts = [
        right("mla_decode_sparse", q[t : t + 1], kv_cache, indices[t : t + 1], **keywords)
        for t in reversed(range(len(q)))
    ]
    if not parts:
        return right("mla_decode_sparse", q, kv_cache, indices, **keywords)
    return tuple(torch.cat(some[::-1]) for some in zip(*parts, strict=True))


@planted("context_attention", is_legal=True)
def heads_in_two_halves(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_start_loc: Tensor,
    chunk_start_loc: Tensor,
    **keywords: Any,
) -> Any:
    """The second half of the heads first."""
    half = q.shape[1] // 2
    parts = []
    for heads in (slice(half, None), slice(half)):
        if q[:, heads].shape[1]:
            given = (q[:, heads].contiguous(), k[:, heads].contiguous(), v[:, heads].contiguous())
            parts.append(
                right("context_attention", *given, query_start_loc, chunk_start_loc, **keywords)
            )
    outs, lses = zip(*reversed(parts), strict=True)
    return torch.cat(outs, dim=1), torch.cat(lses, dim=0)


@planted("context_attention", is_legal=True)
def lse_of_strides_by_token(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_start_loc: Tensor,
    chunk_start_loc: Tensor,
    **keywords: Any,
) -> Any:
    """The lse is stored by token, and given as a transposed view."""
    out, lse = right("context_attention", q, k, v, query_start_loc, chunk_start_loc, **keywords)
    return out, lse.T.contiguous().T


@planted("merge_attn_states", is_legal=True)
def merged_by_powers_of_2(
    prefix_out: Tensor,
    prefix_lse: Tensor,
    suffix_out: Tensor,
    suffix_lse: Tensor,
    *,
    num_tokens_with_context: int | None = None,
) -> Any:
    """Both sides are weighed by powers of 2 above the larger lse, in float64."""
    count = len(prefix_out) if num_tokens_with_context is None else num_tokens_with_context
    out, lse = suffix_out.clone(), suffix_lse.clone()
    sides = []
    for one in (prefix_lse, suffix_lse):
        logs = one[:, :count].double() / math.log(2)
        sides.append(logs.masked_fill(logs == float("inf"), float("-inf")))
    most = torch.maximum(*sides)
    safe = most.masked_fill(most == float("-inf"), 0.0)
    weights = [(side - safe).exp2() for side in sides]
    total = weights[0] + weights[1]
    parts = [
        torch.where(weight.T[..., None] > 0, states[:count].double(), 0.0)
        * (weight / total.masked_fill(total == 0, 1.0)).T[..., None]
        for weight, states in zip(weights, (prefix_out, suffix_out), strict=True)
    ]
    out[:count] = (parts[0] + parts[1]).to(out.dtype)
    lse[:, :count] = ((safe + total.log2()) * math.log(2)).float()
    return out, lse


@planted("merge_attn_states", is_legal=True)
def context_less_rows_first(
    prefix_out: Tensor,
    prefix_lse: Tensor,
    suffix_out: Tensor,
    suffix_lse: Tensor,
    *,
    num_tokens_with_context: int | None = None,
) -> Any:
    """Rows without context are copied by a call of their own, which merges none."""
    count = len(prefix_out) if num_tokens_with_context is None else num_tokens_with_context
    given = (prefix_out, prefix_lse, suffix_out, suffix_lse)
    rest = right("merge_attn_states", *given, num_tokens_with_context=0)
    merged = right("merge_attn_states", *given, num_tokens_with_context=count)
    rest[0][:count], rest[1][:, :count] = merged[0][:count], merged[1][:, :count]
    return rest


@planted("index_logits", is_legal=True)
def nan_past_the_last_key(
    q: Tensor, weights: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor
) -> Tensor:
    """Columns past the last key are NaN."""
    found: Tensor = right("index_logits", q, weights, kv_cache, block_table, seq_lens)
    lengths = (seq_lens[:, None] - q.shape[1] + 1 + torch.arange(q.shape[1])).flatten()
    return found.masked_fill(torch.arange(found.shape[1]) >= lengths[:, None], float("nan"))


@planted("select_topk", is_legal=True)
def the_latest_of_equals(logits: Tensor, seq_lens: Tensor, *, topk: int) -> Tensor:
    """Of equal scores the latest positions are chosen, in falling order."""
    tokens = len(logits) // max(len(seq_lens), 1)
    lengths = (seq_lens[:, None] - tokens + 1 + torch.arange(tokens)).flatten()[:, None]
    places = torch.arange(logits.shape[1])
    # A logit of -inf in the row comes before what is past it, as positions past a row are no choice.
    live = logits.clamp(min=torch.finfo(logits.dtype).min)
    scores = live.masked_fill(places >= lengths, float("-inf")).flip(1)
    order = scores.sort(dim=1, descending=True, stable=True).indices
    order = (logits.shape[1] - 1 - order)[:, :topk]
    found = torch.full((len(logits), topk), -1, dtype=torch.int32)
    found[:, : order.shape[1]] = order.to(torch.int32)
    return found.masked_fill(torch.arange(topk) >= lengths.clamp(min=0), -1)


@planted("quantize_fp8", takes=("num_live",), is_legal=True)
def a_scale_for_each_row(x: Tensor, *, num_live: Any = None) -> Any:
    """Each row has its own scale; rows past the live ones are 0."""
    live = len(x) if num_live is None else int(num_live)
    rows = x.float().clone()
    rows[live:] = 0.0
    scale = rows.abs().amax(dim=1, keepdim=True) / 448
    scale = torch.where(scale == 0, 1.0, scale)
    return (rows / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale


@planted("quantize_blocks", is_legal=True)
def ones_behind_the_last_expert(x: Tensor, expert_offsets: Tensor, *, block_format: str) -> Any:
    """Codes of rows of no expert are all ones."""
    values, scales = right("quantize_blocks", x, expert_offsets, block_format=block_format)
    values[int(expert_offsets[-1]) :] = 255
    return values, scales


@planted("route_experts", is_legal=True)
def ids_in_rising_order(logits: Tensor, *, num_experts_per_tok: int) -> Any:
    """Ids rise, each beside its weight, which is computed in float64."""
    top, ids = logits.double().topk(num_experts_per_tok, dim=1)
    weights = top.softmax(dim=1)
    order = ids.argsort(dim=1)
    return ids.gather(1, order).to(torch.int32), weights.gather(1, order).float()


@planted("align_experts", is_legal=True)
def no_expert_behind_the_last_run(topk_ids: Tensor, *, num_experts: int, block_size: int) -> Any:
    """Blocks behind the last run have expert -1, and their entries are -1."""
    ids, experts, padded = right(
        "align_experts", topk_ids, num_experts=num_experts, block_size=block_size
    )
    live = int(padded)
    ids[live:], experts[live // block_size :] = -1, -1
    return ids, experts, padded


@planted("write_kv", is_legal=True)
def written_in_two_halves(
    kv_c: Tensor, k_pe: Tensor, kv_cache: Tensor, slot_mapping: Tensor, **keywords: Any
) -> None:
    """The second half of the tokens is stored by a call of its own, first."""
    half = len(slot_mapping) // 2
    for rows in (slice(half, None), slice(half)):
        slots = slot_mapping[rows]
        if len(slots):
            right("write_kv", kv_c[rows], k_pe[rows], kv_cache, slots, **keywords)


@planted("write_records", kv=FORMATS, is_legal=True)
def records_from_the_last_token(
    x: Tensor, cache: Tensor, slot_mapping: Tensor, **keywords: Any
) -> None:
    """Stores the last token first."""
    rows = torch.arange(len(slot_mapping)).flip(0)
    right("write_records", x[rows].contiguous(), cache, slot_mapping[rows], **keywords)


@planted("read_records", kv=FORMATS, is_legal=True)
def one_request_of_records_after_another(
    cache: Tensor, block_table: Tensor, cu_seq_lens: Tensor, **keywords: Any
) -> Any:
    """A call for each request that has tokens."""
    found = right("read_records", cache, block_table, cu_seq_lens, **keywords)
    for b, count in enumerate(cu_seq_lens.diff().tolist()):
        if count:
            own = torch.tensor([0, count], dtype=torch.int32)
            rows = slice(int(cu_seq_lens[b]), int(cu_seq_lens[b + 1]))
            found[rows] = right("read_records", cache, block_table[b : b + 1], own, **keywords)
    return found


@planted("map_indices", is_legal=True)
def mapped_in_64_bits(
    positions: Tensor, block_table: Tensor, requests: Tensor, *, page_size: int
) -> Tensor:
    """Slots are computed in 64 bits, column by column from the last."""
    table = block_table.long()[requests[: len(positions)].long()]
    found = torch.empty(positions.shape, dtype=torch.int32)
    for column in reversed(range(positions.shape[1])):
        at = positions[:, column].long()
        safe = at.clamp(min=0)
        block = table.gather(1, (safe // page_size)[:, None])[:, 0]
        slot = block * page_size + safe % page_size
        found[:, column] = torch.where(at < 0, -1, slot).to(torch.int32)
    return found
