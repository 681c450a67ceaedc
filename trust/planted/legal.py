"""Right kernels with unusual choices. Each keeps its op's contract and declares nothing."""

from __future__ import annotations

from typing import Any, get_args

import torch
from torch import Tensor

from harness.core.call_words import RecordFormat
from trust.planted.attention import decode
from trust.planted.plant import planted, right

FORMATS = get_args(RecordFormat)


@planted("mla_decode", takes=("window",), is_legal=True)
def output_of_other_strides(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, **keywords: Any
) -> Any:
    """The output is stored by head: its strides are those of a transposed view."""
    out, lse = right("mla_decode", q, kv_cache, block_table, seq_lens, **keywords)
    stored = torch.empty_like(out.transpose(1, 2), memory_format=torch.contiguous_format)
    return stored.copy_(out.transpose(1, 2)).transpose(1, 2), lse


@planted("mla_decode", takes=("window",), is_legal=True)
def one_request_after_another(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, **keywords: Any
) -> Any:
    """A loop over requests of any page size, without a plan."""
    keywords.pop("metadata", None)
    return decode(q, kv_cache, block_table, seq_lens, **keywords)


@planted("mla_decode", takes=("window",), is_legal=True)
def refuses_a_scale_beside_floats(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, **keywords: Any
) -> Any:
    """Refuses a scale that scales nothing, by an error that names it."""
    if keywords.get("kv_scale") is not None and kv_cache.dtype != torch.float8_e4m3fn:
        raise ValueError("kv_scale: the cache is not fp8")
    return right("mla_decode", q, kv_cache, block_table, seq_lens, **keywords)


@planted("mla_decode_sparse", is_legal=True)
def empty_rows_written(q: Tensor, kv_cache: Tensor, indices: Tensor, **keywords: Any) -> Any:
    """Rows without a slot get out 0 and lse -inf, which it does not declare."""
    out, lse = right("mla_decode_sparse", q, kv_cache, indices, **keywords)
    empty = (indices < 0).all(dim=1)
    out[empty], lse[empty] = 0.0, float("-inf")
    return out, lse


@planted("context_attention", is_legal=True)
def empty_rows_zero(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_start_loc: Tensor,
    chunk_start_loc: Tensor,
    **keywords: Any,
) -> Any:
    """Out of rows without context is 0."""
    out, lse = right("context_attention", q, k, v, query_start_loc, chunk_start_loc, **keywords)
    out[lse.isinf().all(dim=0)] = 0.0
    return out, lse


@planted("merge_attn_states", is_legal=True)
def merged_by_a_sigmoid(
    prefix_out: Tensor,
    prefix_lse: Tensor,
    suffix_out: Tensor,
    suffix_lse: Tensor,
    *,
    num_tokens_with_context: int | None = None,
) -> Any:
    """The weight of a side is a sigmoid of the difference, in float64."""
    count = len(prefix_out) if num_tokens_with_context is None else num_tokens_with_context
    out, lse = suffix_out.clone(), suffix_lse.clone()
    a, b = prefix_lse[:, :count].double(), suffix_lse[:, :count].double()
    a, b = a.masked_fill(a.isinf(), -1e300), b.masked_fill(b.isinf(), -1e300)
    weight = (a - b).sigmoid().T[..., None]
    one = torch.where(weight > 0, prefix_out[:count].double(), 0.0)
    two = torch.where(weight < 1, suffix_out[:count].double(), 0.0)
    both = (one * weight + two * (1 - weight)).to(out.dtype)
    found = torch.logaddexp(a, b)
    neither = (a == -1e300) & (b == -1e300)
    out[:count] = both.masked_fill(neither.T[..., None], 0.0)
    lse[:, :count] = found.masked_fill(neither, float("-inf")).float()
    return out, lse


@planted("index_logits", is_legal=True)
def minus_inf_past_the_last_key(
    q: Tensor, weights: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor
) -> Tensor:
    """Columns past the last key are -inf."""
    found: Tensor = right("index_logits", q, weights, kv_cache, block_table, seq_lens)
    lengths = (seq_lens[:, None] - q.shape[1] + 1 + torch.arange(q.shape[1])).flatten()
    return found.masked_fill(torch.arange(found.shape[1]) >= lengths[:, None], float("-inf"))


@planted("select_topk", is_legal=True)
def chosen_in_rising_order(logits: Tensor, seq_lens: Tensor, *, topk: int) -> Tensor:
    """Positions rise, and -1 stands in front."""
    found: Tensor = right("select_topk", logits, seq_lens, topk=topk)
    return found.sort(dim=1).values


@planted("quantize_fp8", takes=("num_live",), is_legal=True)
def scales_of_blocks(x: Tensor, *, num_live: int | None = None) -> Any:
    """A scale for each block of a row."""
    blocks = x.shape[1] // 128 if x.shape[1] % 128 == 0 else 1
    parts = x.float().view(len(x), blocks, -1)
    scale = parts.abs().amax(dim=2) / 448
    scale = torch.where(scale == 0, 1.0, scale)
    return (parts / scale[..., None]).clamp(-448, 448).to(torch.float8_e4m3fn).view(x.shape), scale


@planted("quantize_fp8", takes=("num_live",), is_legal=True)
def amax_of_at_least_1e_10(x: Tensor, *, num_live: int | None = None) -> Any:
    """A largest element below 1e-10 counts as 1e-10, one of 0 as 448."""
    live = len(x) if num_live is None else int(num_live)
    amax = x[:live].float().abs().amax()
    scale = torch.where(amax == 0, 448.0, amax.clamp(min=1e-10)).reshape(1) / 448
    return (x.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale


@planted("route_experts", is_legal=True)
def chosen_before_the_softmax(logits: Tensor, *, num_experts_per_tok: int) -> Any:
    """Chooses by logits, in any order, and weighs the chosen ones alone."""
    top, ids = logits.float().topk(num_experts_per_tok, dim=1)
    return ids.flip(1).to(torch.int32), top.flip(1).softmax(dim=1)


@planted("align_experts", is_legal=True)
def runs_backwards(topk_ids: Tensor, *, num_experts: int, block_size: int) -> Any:
    """The choices of a run fall, and what is behind the last run is left as it is."""
    ids, experts, padded = right(
        "align_experts", topk_ids, num_experts=num_experts, block_size=block_size
    )
    count = topk_ids.numel()
    live = ids[: int(padded)].view(-1, block_size)
    live.copy_(torch.where(live < count, live, -1).sort(dim=1, descending=True).values)
    live[live < 0] = count
    return ids, experts, padded


@planted("write_kv", is_legal=True)
def written_from_the_last_token(
    kv_c: Tensor, k_pe: Tensor, kv_cache: Tensor, slot_mapping: Tensor, **keywords: Any
) -> None:
    """Stores the last token first."""
    rows = torch.arange(len(slot_mapping)).flip(0)
    right("write_kv", kv_c[rows], k_pe[rows], kv_cache, slot_mapping[rows], **keywords)
