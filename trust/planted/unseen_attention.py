"""Wrong kernels of the attention ops that were written without a look at the cases: last tiles,
groups of heads, stale buffers, roundings, and edges of splits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from harness.core.ops import latent_rank
from trust.planted.attention import decode
from trust.planted.plant import planted, right

PARTIALS: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}
"""The buffers of `partials_of_the_call_before`, by the shape of the query."""


@planted("mla_decode", takes=("window",))
def a_tile_of_one_key_is_lost(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, **keywords: Any
) -> Any:
    """Rounds (L + 14) / 16 down for the number of tiles: a last tile of one key is left out."""
    keywords.pop("metadata", None)
    has_one = (seq_lens % 16 == 1) & (seq_lens > 16)
    return decode(q, kv_cache, block_table, seq_lens, lengths=seq_lens - has_one.int(), **keywords)


@planted("mla_decode", takes=("window",))
def last_group_of_heads_is_shifted(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, **keywords: Any
) -> Any:
    """Loads a last group of fewer than 16 heads from head H - 16 on, and stores it as it is."""
    heads = q.shape[2]
    rest = heads % 16
    if heads > 16 and rest:
        q = q.clone()
        q[:, :, heads - rest :] = q[:, :, heads - 16 : heads - 16 + rest].clone()
    return right("mla_decode", q, kv_cache, block_table, seq_lens, **keywords)


@planted("mla_decode", takes=("window",))
def lse_of_windows_in_base_2(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, **keywords: Any
) -> Any:
    """The path with a window returns the lse to base 2."""
    out, lse = right("mla_decode", q, kv_cache, block_table, seq_lens, **keywords)
    return out, lse if keywords.get("window") is None else lse * 1.4426950408889634


@planted("mla_decode", takes=("window",))
def partials_of_the_call_before(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, **keywords: Any
) -> Any:
    """Short requests are combined with what their second piece was in the call before."""
    out, lse = right("mla_decode", q, kv_cache, block_table, seq_lens, **keywords)
    shape = tuple(q.shape)
    before = PARTIALS.get(shape)
    PARTIALS[shape] = (out.clone(), lse.clone())
    if before is None:
        return out, lse
    is_short = (seq_lens > 0) & (seq_lens <= 64)
    merged = torch.logaddexp(lse, before[1])
    weight = (lse - merged).exp().transpose(1, 2)[..., None]
    both = (out * weight + before[0] * (1 - weight)).to(out.dtype)
    return (
        torch.where(is_short[:, None, None, None], both, out),
        torch.where(is_short[:, None, None], merged, lse),
    )


@planted("mla_decode", takes=("window",), blames=("block_table.pad", "kv.free", "kv.null"))
def rows_of_the_table_by_the_longest(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, **keywords: Any
) -> Any:
    """The rows of the table begin as many entries apart as the longest request has pages."""
    size = kv_cache.shape[1]
    pages = max(-(-int(seq_lens.max()) // size), 1)
    starts = torch.arange(len(seq_lens))[:, None] * pages
    places = (starts + torch.arange(block_table.shape[1])) % block_table.numel()
    table = block_table.flatten()[places].contiguous()
    return right("mla_decode", q, kv_cache, table, seq_lens, **keywords)


@planted("mla_decode", takes=("window",))
def window_from_the_start_of_a_page(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, **keywords: Any
) -> Any:
    """A window begins where its first page does."""
    window = keywords.pop("window", None)
    keywords.pop("metadata", None)
    out, lse = decode(q, kv_cache, block_table, seq_lens, window=window, **keywords)
    if window is None:
        return out, lse
    for b, length in enumerate(seq_lens.tolist()):
        start = max(length - window, 0) // kv_cache.shape[1] * kv_cache.shape[1]
        if length:
            out[b : b + 1], lse[b : b + 1] = decode(
                q[b : b + 1],
                kv_cache,
                block_table[b : b + 1],
                seq_lens[b : b + 1],
                window=length - start,
                **keywords,
            )
    return out, lse


@planted("mla_decode", takes=("window",))
def last_of_odd_heads_pairs_otherwise(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, **keywords: Any
) -> Any:
    """Of an odd number of heads the last one's rope pairs are exchanged."""
    if q.shape[2] % 2 and q.shape[2] > 1:
        q = q.clone()
        rope = q[:, :, -1, latent_rank(q.shape[3]) :]
        rope.copy_(rope.unflatten(-1, (-1, 2)).flip(-1).flatten(-2))
    return right("mla_decode", q, kv_cache, block_table, seq_lens, **keywords)


@planted("mla_decode", takes=("window",))
def last_page_of_full_splits_is_lost(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, **keywords: Any
) -> Any:
    """A request that ends with a piece of four pages loses its last page."""
    keywords.pop("metadata", None)
    size = kv_cache.shape[1]
    is_full = (seq_lens % (4 * size) == 0) & (seq_lens > 0)
    return decode(
        q, kv_cache, block_table, seq_lens, lengths=seq_lens - is_full.int() * size, **keywords
    )


@planted("mla_decode_sparse")
def last_lane_of_a_tile_is_masked(
    q: Tensor, kv_cache: Tensor, indices: Tensor, **keywords: Any
) -> Any:
    """In lists of whole tiles of 64 the last lane of each tile is left out."""
    if indices.shape[1] % 64 == 0:
        indices = indices.clone()
        indices[:, 63::64] = -1
    return right("mla_decode_sparse", q, kv_cache, indices, **keywords)


@planted("mla_decode_sparse")
def two_tokens_share_a_list(q: Tensor, kv_cache: Tensor, indices: Tensor, **keywords: Any) -> Any:
    """Every second token reads the list of the token before it."""
    rows = torch.arange(len(indices)) // 2 * 2
    return right("mla_decode_sparse", q, kv_cache, indices[rows], **keywords)


@planted("mla_decode_sparse", blames=("output", "lse"))
def heads_of_a_last_group_unwritten(
    q: Tensor, kv_cache: Tensor, indices: Tensor, **keywords: Any
) -> Any:
    """Heads behind the last whole group of 16 are not written."""
    out, lse = right("mla_decode_sparse", q, kv_cache, indices, **keywords)
    heads = q.shape[1]
    whole = heads // 16 * 16 if heads > 16 else heads
    found, found_lse = torch.empty_like(out), torch.empty_like(lse)
    found[:, :whole], found_lse[:, :whole] = out[:, :whole], lse[:, :whole]
    return found, found_lse


@planted("mla_decode_sparse", blames=("kv.free", "kv.null"))
def only_minus_one_is_no_slot(q: Tensor, kv_cache: Tensor, indices: Tensor, **keywords: Any) -> Any:
    """Of negative indices only -1 is none; others count from the end of the cache."""
    slots = kv_cache.shape[0] * kv_cache.shape[1]
    found = torch.where(indices < -1, (indices % slots).to(indices.dtype), indices)
    return right("mla_decode_sparse", q, kv_cache, found, **keywords)


@planted("context_attention")
def sums_are_not_rescaled(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_start_loc: Tensor,
    chunk_start_loc: Tensor,
    *,
    scale: float,
) -> Any:
    """The output is not rescaled where a later tile of 64 keys has a larger maximum."""
    out, lse = right("context_attention", q, k, v, query_start_loc, chunk_start_loc, scale=scale)
    spans = zip(
        query_start_loc.tolist(),
        query_start_loc.tolist()[1:],
        chunk_start_loc.tolist(),
        chunk_start_loc.tolist()[1:],
        strict=False,
    )
    for first, last, start, end in spans:
        if last == first or end - start <= 64:
            continue
        scores = torch.einsum("thd,chd->thc", q[first:last].float(), k[start:end].float()) * scale
        most = scores[..., :64].amax(-1)
        total = torch.zeros_like(out[first:last], dtype=torch.float32)
        for tile in range(0, end - start, 64):
            part = scores[..., tile : tile + 64]
            most = torch.maximum(most, part.amax(-1))
            weights = (part - most[..., None]).exp()
            values = v[start + tile : min(start + tile + 64, end)].float()
            total += torch.einsum("thc,chv->thv", weights, values)
        share = (lse[:, first:last].T - most).exp()
        out[first:last] = (total / share[..., None]).to(out.dtype)
    return out, lse


@planted("context_attention", blames=("context.output", "context.lse"))
def a_chunk_of_one_key_is_empty(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_start_loc: Tensor,
    chunk_start_loc: Tensor,
    **keywords: Any,
) -> Any:
    """Requests with one key are left out, as those without any."""
    out, lse = right("context_attention", q, k, v, query_start_loc, chunk_start_loc, **keywords)
    found, found_lse = torch.empty_like(out), torch.empty_like(lse)
    for b, count in enumerate(chunk_start_loc.diff().tolist()):
        rows = slice(int(query_start_loc[b]), int(query_start_loc[b + 1]))
        if count != 1:
            found[rows], found_lse[:, rows] = out[rows], lse[:, rows]
    return found, found_lse


@planted("context_attention")
def last_of_odd_heads_has_values_of_another(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_start_loc: Tensor,
    chunk_start_loc: Tensor,
    **keywords: Any,
) -> Any:
    """Heads are handled in pairs: a last one alone takes the values of the head before it."""
    if v.shape[1] % 2 and v.shape[1] > 1:
        v = v.clone()
        v[:, -1] = v[:, -2]
    return right("context_attention", q, k, v, query_start_loc, chunk_start_loc, **keywords)


@planted("context_attention")
def lse_of_128_keys(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_start_loc: Tensor,
    chunk_start_loc: Tensor,
    *,
    scale: float,
) -> Any:
    """The lse is that of the first 128 keys of a request."""
    out, lse = right("context_attention", q, k, v, query_start_loc, chunk_start_loc, scale=scale)
    for b, count in enumerate(chunk_start_loc.diff().tolist()):
        rows = slice(int(query_start_loc[b]), int(query_start_loc[b + 1]))
        start = int(chunk_start_loc[b])
        if count > 128 and rows.stop > rows.start:
            keys = k[start : start + 128].float()
            scores = torch.einsum("thd,chd->htc", q[rows].float(), keys) * scale
            lse[:, rows] = scores.logsumexp(-1)
    return out, lse


@planted("merge_attn_states")
def weights_in_bf16(
    prefix_out: Tensor,
    prefix_lse: Tensor,
    suffix_out: Tensor,
    suffix_lse: Tensor,
    *,
    num_tokens_with_context: int | None = None,
) -> Any:
    """The weight of a side is rounded to bfloat16, whatever the type of the outputs is."""
    out, lse = right(
        "merge_attn_states",
        prefix_out,
        prefix_lse,
        suffix_out,
        suffix_lse,
        num_tokens_with_context=num_tokens_with_context,
    )
    count = len(out) if num_tokens_with_context is None else num_tokens_with_context
    a, b = prefix_lse[:, :count], suffix_lse[:, :count]
    has_both = (a.isfinite() & b.isfinite()).T[..., None]
    weight = (a - b).sigmoid().bfloat16().float().T[..., None]
    both = prefix_out[:count].float() * weight + suffix_out[:count].float() * (1 - weight)
    out[:count] = torch.where(has_both, both.to(out.dtype), out[:count])
    return out, lse


@planted("merge_attn_states")
def a_faint_side_is_dropped(
    prefix_out: Tensor,
    prefix_lse: Tensor,
    suffix_out: Tensor,
    suffix_lse: Tensor,
    *,
    num_tokens_with_context: int | None = None,
) -> Any:
    """A side whose lse is 6 below the other's counts as empty."""
    gap = prefix_lse - suffix_lse
    count = len(prefix_out) if num_tokens_with_context is None else num_tokens_with_context
    prefix_lse = prefix_lse.masked_fill(gap < -6, float("-inf"))
    suffix_lse = suffix_lse.clone()
    faint = gap[:, :count] > 6
    suffix_lse[:, :count] = suffix_lse[:, :count].masked_fill(faint, float("-inf"))
    return right(
        "merge_attn_states",
        prefix_out,
        prefix_lse,
        suffix_out,
        suffix_lse,
        num_tokens_with_context=num_tokens_with_context,
    )


@planted("merge_attn_states", blames=("context.output", "context.lse"))
def rows_are_merged_by_eights(
    prefix_out: Tensor, prefix_lse: Tensor, suffix_out: Tensor, suffix_lse: Tensor, **keywords: Any
) -> Any:
    """The rows with context are rounded up to a multiple of 8."""
    count = keywords.get("num_tokens_with_context")
    if count is not None:
        keywords["num_tokens_with_context"] = min(-(-count // 8) * 8, len(prefix_out))
    return right("merge_attn_states", prefix_out, prefix_lse, suffix_out, suffix_lse, **keywords)


@planted("merge_attn_states")
def lse_stored_by_token(
    prefix_out: Tensor, prefix_lse: Tensor, suffix_out: Tensor, suffix_lse: Tensor, **keywords: Any
) -> Any:
    """The lse is stored token by token, in a tensor that is read head by head."""
    out, lse = right(
        "merge_attn_states", prefix_out, prefix_lse, suffix_out, suffix_lse, **keywords
    )
    return out, lse.T.contiguous().view(lse.shape)
