"""Errors of public kernels, each by its thread, in kernels of the same ops.

Rows of other ops or of engines stand in the catalog of faults.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, get_args

import torch
from torch import Tensor

from harness.core.call_words import RecordFormat
from harness.core.ops import latent_rank
from harness.ops.parts.record_formats import RECORDS
from harness.ops.parts.record_views import record_views
from trust.planted.attention import decode
from trust.planted.plant import planted, right

FORMATS = get_args(RecordFormat)


@planted("mla_decode", takes=("window",))
def values_walk_with_another_step(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, **keywords: Any
) -> Any:
    """Scores walk in blocks of D rows, values in blocks of R rows (ikawrakow/ik_llama.cpp#2031)."""
    width = q.shape[-1]
    keywords.pop("metadata", None)

    def values_at(b: int, count: int) -> Tensor:
        at = torch.arange(count)
        return at // width * latent_rank(width) + at % width

    return decode(q, kv_cache, block_table, seq_lens, values_at=values_at, **keywords)


@planted("mla_decode", takes=("window",))
def extent_of_the_last_request(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, **keywords: Any
) -> Any:
    """Reads as many keys of each request as the last one has (ikawrakow/ik_llama.cpp#1880)."""
    keywords.pop("metadata", None)
    lengths = torch.minimum(seq_lens, seq_lens[-1:].clamp(min=1))
    return decode(q, kv_cache, block_table, seq_lens, lengths=lengths, **keywords)


@planted("mla_decode", takes=("window",), blames=("lse",))
def lse_of_the_first_tile(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, **keywords: Any
) -> Any:
    """Stores the lse of each tile of 16 rows in the first (ikawrakow/ik_llama.cpp#1521)."""
    out, lse = right("mla_decode", q, kv_cache, block_table, seq_lens, **keywords)
    found = torch.empty_like(lse)
    batch, heads, tokens = lse.shape
    rows = lse.transpose(1, 2).reshape(batch, tokens * heads)
    stored = found.transpose(1, 2).reshape(batch, tokens * heads)
    for tile in rows.split(16, dim=1):
        stored[:, : tile.shape[1]] = tile
    return out, stored.view(batch, tokens, heads).transpose(1, 2).contiguous()


@planted("mla_decode", takes=("window",))
def lse_of_each_tile_over_the_first(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, **keywords: Any
) -> Any:
    """The first tile holds an lse of the second: lse alone is wrong, and all memory is written."""
    out, lse = right("mla_decode", q, kv_cache, block_table, seq_lens, **keywords)
    if lse.shape[1] > 16:
        lse[:, :16] = lse[:, 16:32].mean(dim=1, keepdim=True)
    return out, lse


@planted("mla_decode", takes=("window",))
def combine_by_head_size(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, **keywords: Any
) -> Any:
    """Rows of the output are a head apart, as in a transposed view (flagos-ai/FlagGems#5235)."""
    out, lse = right("mla_decode", q, kv_cache, block_table, seq_lens, **keywords)
    batch, tokens, heads, rank = out.shape
    return out.transpose(1, 2).reshape(batch, tokens, heads, rank), lse


@planted("mla_decode", takes=("window",))
def short_prompts_without_a_causal_mask(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, **keywords: Any
) -> Any:
    """Contexts below top-k skip the selection, and the mask with it (osaurus-ai/vmlx-swift#429)."""
    keywords.pop("metadata", None)
    is_short = int(seq_lens.max()) <= 2048
    return decode(q, kv_cache, block_table, seq_lens, is_causal=not is_short, **keywords)


@planted("mla_decode", takes=("window",))
def one_token_without_a_window(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, **keywords: Any
) -> Any:
    """A call of one query token has no mask, hence no window (ml-explore/mlx-lm#843)."""
    if q.shape[1] == 1:
        keywords["window"] = None
    return right("mla_decode", q, kv_cache, block_table, seq_lens, **keywords)


@planted("mla_decode", takes=("window",))
def padding_scores_0(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, **keywords: Any
) -> Any:
    """Lanes past the length take part with a score of 0 (tile-ai/tilelang#2636)."""
    out, lse = right("mla_decode", q, kv_cache, block_table, seq_lens, **keywords)
    padded = (-seq_lens % 16).float()[:, None, None].expand_as(lse)
    found = torch.logaddexp(lse, padded.log())
    is_live = (seq_lens > 0)[:, None, None].expand_as(lse)
    factor = torch.where(is_live, (lse - found).exp(), 1.0).transpose(1, 2)[..., None]
    return (out * factor).to(q.dtype), torch.where(is_live, found, lse)


@planted("mla_decode", takes=("window",), blames=("workspace", "output", "lse"))
def empty_split_unwritten(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, **keywords: Any
) -> Any:
    """Merges four pieces of each request, of which an empty one is unwritten
    (pytorch/torchtitan#3235).
    """
    out, lse = right("mla_decode", q, kv_cache, block_table, seq_lens, **keywords)
    # One lse for each piece; the pages of a request are cut into pieces of equal size.
    pieces = torch.empty(4, len(q))
    pages = -(-seq_lens // kv_cache.shape[1])
    for piece in range(4):
        has_pages = piece * -(-pages // 4) < pages
        pieces[piece] = torch.where(has_pages, 0.0, pieces[piece])
    factor = torch.where(seq_lens > 0, 1 + 0 * pieces.sum(dim=0), 1.0)
    return (out * factor[:, None, None, None]).to(q.dtype), lse


@planted("mla_decode", takes=("window",))
def rotated_values(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, **keywords: Any
) -> Any:
    """The rotation of the keys is not undone for the values: lse is right (ggml-org/llama.cpp#26423)."""
    out, lse = right("mla_decode", q, kv_cache, block_table, seq_lens, **keywords)
    pair = out.float().unflatten(-1, (-1, 2))
    turned = torch.stack((pair[..., 0] + pair[..., 1], pair[..., 0] - pair[..., 1]), dim=-1)
    return (turned * 0.5**0.5).flatten(-2).to(q.dtype), lse


@planted("mla_decode", takes=("window",))
def values_of_another_scale(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, **keywords: Any
) -> Any:
    """One latent row is read with k_scale as key, with v_scale as value (sgl-project/sglang#34765)."""
    keywords.pop("metadata", None)
    return decode(q, kv_cache, block_table, seq_lens, value_scale=1.0, **keywords)


@planted("mla_decode", takes=("window",))
def values_of_both_scales(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, **keywords: Any
) -> Any:
    """The output takes k_scale times v_scale (sgl-project/sglang#20705)."""
    out, lse = right("mla_decode", q, kv_cache, block_table, seq_lens, **keywords)
    is_fp8 = kv_cache.dtype == torch.float8_e4m3fn
    return (out * (keywords.get("kv_scale") or 1.0)).to(q.dtype) if is_fp8 else out, lse


@planted("index_logits", blames=("sparse.logits",))
def bound_of_the_chunk(
    q: Tensor, weights: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor
) -> Tensor:
    """Scores as many keys as the chunk has tokens, not the context (hw-native-sys/pypto-lib#592)."""
    good: Tensor = right("index_logits", q, weights, kv_cache, block_table, seq_lens)
    found = torch.empty_like(good)
    found[:, : q.shape[1]] = good[:, : q.shape[1]]
    return found


@planted("index_logits")
def zeros_for_a_large_call(
    q: Tensor, weights: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor
) -> Tensor:
    """A sum over many heads, tokens and keys gives zeros (ml-explore/mlx-lm#1454)."""
    found: Tensor = right("index_logits", q, weights, kv_cache, block_table, seq_lens)
    return found if found.numel() * q.shape[2] < 2**16 else torch.zeros_like(found)


@planted("index_logits")
def keys_in_halves(
    q: Tensor, weights: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor
) -> Tensor:
    """The query is rotated in pairs, the keys in halves (ikawrakow/ik_llama.cpp#2099)."""
    paired = q.float().unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2).to(q.dtype)
    found: Tensor = right("index_logits", paired, weights, kv_cache, block_table, seq_lens)
    return found


@planted("index_logits")
def adds_into_an_input(
    q: Tensor, weights: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor
) -> Tensor:
    """Adds up in place, in memory that later layers read (ikawrakow/ik_llama.cpp#2069)."""
    found: Tensor = right("index_logits", q, weights, kv_cache, block_table, seq_lens)
    weights.add_(1.0)
    return found


@planted("index_logits", kv=("fp32", "bf16", "indexer_planar"))
def codes_of_another_type(
    q: Tensor, weights: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor
) -> Tensor:
    """Reads quantised keys as another type (ikawrakow/ik_llama.cpp#2286)."""
    if kv_cache.dtype != torch.uint8:
        return right("index_logits", q, weights, kv_cache, block_table, seq_lens)  # type: ignore[no-any-return]
    wrong = kv_cache.clone()
    keys = kv_cache.shape[1] * (kv_cache.shape[2] - 4)
    codes = wrong.flatten(1)[:, :keys]
    wrong.flatten(1)[:, :keys] = (
        codes.view(torch.int8).float().mul(0.01).to(torch.float8_e4m3fn).view(torch.uint8)
    )
    return right("index_logits", q, weights, wrong, block_table, seq_lens)  # type: ignore[no-any-return]


@planted("select_topk")
def late_fill_erases_choices(logits: Tensor, seq_lens: Tensor, *, topk: int) -> Tensor:
    """A late warp's fill erases what others chose (ikawrakow/ik_llama.cpp#2148)."""
    found: Tensor = right("select_topk", logits, seq_lens, topk=topk)
    found[:, 3::4] = -1
    return found


@planted("quantize_fp8", takes=("num_live",), blames=("workspace",))
def lanes_of_padding_in_the_amax(x: Tensor, *, num_live: int | None = None) -> Any:
    """Lanes up to a power of two take part in the largest element (InternLM/lmdeploy#4850)."""
    width = 1 << (x.shape[1] - 1).bit_length()
    lanes = torch.empty(len(x), width, dtype=x.dtype)
    lanes[:, : x.shape[1]] = x
    scale = right("quantize_fp8", lanes, num_live=num_live)[1]
    return (x.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale


@planted("write_records", kv=FORMATS, blames=("kv.new", "kv.free"))
def scales_over_the_values(
    x: Tensor,
    cache: Tensor,
    slot_mapping: Tensor,
    *,
    record_format: str,
    scale: float | None = None,
) -> None:
    """Scales land at the base of the block, over its values (InternLM/lmdeploy#4764)."""
    right("write_records", x, cache, slot_mapping, record_format=record_format, scale=scale)
    views = record_views(cache, record_format)
    if len(views) > 1 and RECORDS[record_format].group:
        for slot in slot_mapping[slot_mapping >= 0].tolist():
            block, place = divmod(slot, cache.shape[1])
            tile = views[1].shape[2]
            scales = (
                views[1][block, place // tile, place % tile].clone().view(torch.uint8).flatten()
            )
            start = place * len(scales)
            cache[block].view(-1)[start : start + len(scales)] = scales


@planted("quantize_fp8", takes=("num_live",), blames=("scale.pad",))
def scales_viewed_for_transposed(x: Tensor, *, num_live: int | None = None) -> Any:
    """Column-major scales are returned by a view, not a transpose (ROCm/aiter#4506)."""
    blocks = x.shape[1] // 128 or 1
    parts = x.float().view(len(x), blocks, -1)
    scale = parts.abs().amax(dim=2) / 448
    scale = torch.where(scale == 0, 1.0, scale)
    x8 = (parts / scale[..., None]).clamp(-448, 448).to(torch.float8_e4m3fn).view(x.shape)
    return x8, scale.T.contiguous().view(len(x), blocks)


@planted("context_attention")
def offset_is_the_length_before(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_start_loc: Tensor,
    chunk_start_loc: Tensor,
    **keywords: Any,
) -> Any:
    """A request begins at the length of the one before: right for two (InternLM/lmdeploy#3887)."""
    lengths = [b - a for a, b in pairwise(chunk_start_loc.tolist())]
    rows = []
    for before, length in pairwise([0, *lengths]):
        rows.append(before + torch.arange(length))
    places = torch.cat(rows).clamp(max=len(k) - 1)
    return right(
        "context_attention", q, k[places], v[places], query_start_loc, chunk_start_loc, **keywords
    )


@planted("read_records", kv=FORMATS)
def records_begin_at_the_length_before(
    cache: Tensor, block_table: Tensor, cu_seq_lens: Tensor, **keywords: Any
) -> Any:
    """The rows of a request begin at the length of the one before (InternLM/lmdeploy#3887)."""
    good = right("read_records", cache, block_table, cu_seq_lens, **keywords)
    found = good.clone()
    lengths = cu_seq_lens.diff().tolist()
    for b, (before, length) in enumerate(pairwise([0, *lengths])):
        start = min(before, len(good) - length)
        found[start : start + length] = good[int(cu_seq_lens[b]) : int(cu_seq_lens[b]) + length]
    return found
