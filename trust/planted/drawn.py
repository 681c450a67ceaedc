"""Wrong kernels of all ops that were written after the cases, from classes of errors that no case
was made for: wrong heads, roundings, pairings, orders and edges.
"""

from __future__ import annotations

from typing import Any, get_args

import torch
from torch import Tensor

from harness.core.call_words import RecordFormat
from trust.planted.attention import decode
from trust.planted.plant import planted, right

FORMATS = get_args(RecordFormat)


@planted("mla_decode", takes=("window",))
def last_head_without_rope(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, **keywords: Any
) -> Any:
    """The last head's score leaves the last element of a key out."""
    q = q.clone()
    q[:, :, -1, -1] = 0
    return right("mla_decode", q, kv_cache, block_table, seq_lens, **keywords)


@planted("mla_decode", takes=("window",))
def window_one_wider(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, **keywords: Any
) -> Any:
    """A window larger than a page has one key more."""
    if (keywords.get("window") or 0) > kv_cache.shape[1]:
        keywords["window"] += 1
    return right("mla_decode", q, kv_cache, block_table, seq_lens, **keywords)


@planted("mla_decode", takes=("window",))
def lse_of_one_key_is_0(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, **keywords: Any
) -> Any:
    """A request of one token has an lse of 0: the sum's logarithm without the maximum."""
    out, lse = right("mla_decode", q, kv_cache, block_table, seq_lens, **keywords)
    lse[seq_lens == 1] = 0.0
    return out, lse


@planted("mla_decode", takes=("window",))
def pages_added_in_bf16(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, **keywords: Any
) -> Any:
    """The weights are rounded to 4 bits of mantissa."""
    out, lse = right("mla_decode", q, kv_cache, block_table, seq_lens, **keywords)
    rough = out.to(torch.float8_e4m3fn).to(out.dtype)
    return rough, lse


@planted("mla_decode", takes=("window",))
def first_token_sees_the_last_key(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, **keywords: Any
) -> Any:
    """The first of several query tokens sees one key too many."""
    out, lse = right("mla_decode", q, kv_cache, block_table, seq_lens, **keywords)
    keywords.pop("metadata", None)
    if q.shape[1] > 1:
        wrong, wrong_lse = decode(q, kv_cache, block_table, seq_lens, is_causal=False, **keywords)
        live = seq_lens > 0
        out[live, 0], lse[live, :, 0] = wrong[live, 0], wrong_lse[live, :, 0]
    return out, lse


@planted("mla_decode_sparse")
def list_ends_at_the_first_hole(
    q: Tensor, kv_cache: Tensor, indices: Tensor, **keywords: Any
) -> Any:
    """A list ends at its first -1, but not one that begins with it."""
    before = (indices >= 0).long().cumprod(dim=1).bool()
    kept = torch.where(before | (indices[:, :1] < 0), indices, -1)
    return right("mla_decode_sparse", q, kv_cache, kept, **keywords)


@planted("mla_decode_sparse", blames=("output", "lse"))
def odd_lists_lose_their_last(q: Tensor, kv_cache: Tensor, indices: Tensor, **keywords: Any) -> Any:
    """Lists are read in pairs, so a full one of odd width loses its last slot."""
    width = indices.shape[1]
    kept = indices[:, : width - width % 2] if width > 2 else indices
    return right("mla_decode_sparse", q, kv_cache, kept.contiguous(), **keywords)


@planted("mla_decode_sparse")
def sparse_lse_in_bf16(q: Tensor, kv_cache: Tensor, indices: Tensor, **keywords: Any) -> Any:
    """The lse is rounded to bfloat16."""
    out, lse = right("mla_decode_sparse", q, kv_cache, indices, **keywords)
    return out, lse.bfloat16().float()


@planted("context_attention")
def heads_share_keys(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_start_loc: Tensor,
    chunk_start_loc: Tensor,
    **keywords: Any,
) -> Any:
    """Head 16 and later read the keys of head 0 and later."""
    heads = torch.arange(k.shape[1]) % 16
    return right(
        "context_attention", q, k[:, heads], v, query_start_loc, chunk_start_loc, **keywords
    )


@planted("context_attention")
def values_in_tiles_of_96(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_start_loc: Tensor,
    chunk_start_loc: Tensor,
    **keywords: Any,
) -> Any:
    """Elements of a value past the 96th are those of the first tile."""
    out, lse = right("context_attention", q, k, v, query_start_loc, chunk_start_loc, **keywords)
    out[..., 96:] = out[..., : out[..., 96:].shape[-1]]
    return out, lse


@planted("merge_attn_states")
def powers_of_2(
    prefix_out: Tensor, prefix_lse: Tensor, suffix_out: Tensor, suffix_lse: Tensor, **keywords: Any
) -> Any:
    """Weighs by powers of 2, where both lse are natural logarithms."""
    ln2 = 0.6931471805599453
    out, _lse = right(
        "merge_attn_states", prefix_out, prefix_lse * ln2, suffix_out, suffix_lse * ln2, **keywords
    )
    good = right("merge_attn_states", prefix_out, prefix_lse, suffix_out, suffix_lse, **keywords)
    return out, good[1]


@planted("merge_attn_states")
def one_token_too_many_is_copied(
    prefix_out: Tensor, prefix_lse: Tensor, suffix_out: Tensor, suffix_lse: Tensor, **keywords: Any
) -> Any:
    """The last token with context is copied from the suffix, unless all have context."""
    count = keywords.get("num_tokens_with_context")
    if count and count < len(prefix_out):
        keywords["num_tokens_with_context"] = count - 1
    return right("merge_attn_states", prefix_out, prefix_lse, suffix_out, suffix_lse, **keywords)


@planted("index_logits")
def first_head_without_relu(
    q: Tensor, weights: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor
) -> Tensor:
    """The last head of several weighs with the weight of the one before."""
    weights = weights.clone()
    if weights.shape[2] > 1:
        weights[..., -1] = weights[..., -2]
    found: Tensor = right("index_logits", q, weights, kv_cache, block_table, seq_lens)
    return found


@planted("select_topk")
def largest_by_magnitude(logits: Tensor, seq_lens: Tensor, *, topk: int) -> Tensor:
    """Chooses by magnitude, in rows that are longer than K."""
    found: Tensor = right("select_topk", logits.abs(), seq_lens, topk=topk)
    return found


@planted("select_topk")
def a_tie_is_chosen_twice(logits: Tensor, seq_lens: Tensor, *, topk: int) -> Tensor:
    """Where the last two choices are equal, one position stands twice."""
    found: Tensor = right("select_topk", logits, seq_lens, topk=topk)
    if topk > 1:
        ends = logits.gather(1, found[:, -2:].long().clamp(min=0))
        is_tie = (ends[:, 0] == ends[:, 1]) & (found[:, -1] >= 0)
        found[is_tie, -1] = found[is_tie, -2]
    return found


@planted("quantize_fp8", takes=("num_live",))
def saturates_at_240(x: Tensor, *, num_live: int | None = None) -> Any:
    """Saturates where another fp8 type ends (e4m3fnuz)."""
    x8, scale = right("quantize_fp8", x, num_live=num_live)
    return x8.float().clamp(-240, 240).to(torch.float8_e4m3fn), scale


@planted("quantize_blocks")
def halves_of_a_byte_exchanged(x: Tensor, expert_offsets: Tensor, *, block_format: str) -> Any:
    """The first of two codes stands in the high half of its byte."""
    values, scales = right("quantize_blocks", x, expert_offsets, block_format=block_format)
    return (values if block_format == "mxfp8" else (values << 4) | (values >> 4)), scales


@planted("quantize_blocks")
def scale_rounded_down(x: Tensor, expert_offsets: Tensor, *, block_format: str) -> Any:
    """The scale of an nvfp4 block is one code too small where its code is odd."""
    values, scales = right("quantize_blocks", x, expert_offsets, block_format=block_format)
    if block_format == "nvfp4":
        scales = torch.where(scales % 2 == 1, scales - 1, scales)
    return values, scales


@planted("route_experts")
def weights_not_normalised(logits: Tensor, *, num_experts_per_tok: int) -> Any:
    """Weights are shares of all experts, not of the chosen ones."""
    ids, _ = right("route_experts", logits, num_experts_per_tok=num_experts_per_tok)
    return ids, logits.float().softmax(dim=-1).gather(1, ids.long())


@planted("route_experts")
def weights_beside_other_ids(logits: Tensor, *, num_experts_per_tok: int) -> Any:
    """Ids are sorted, and their weights are not."""
    ids, weights = right("route_experts", logits, num_experts_per_tok=num_experts_per_tok)
    return ids.sort(dim=1).values, weights


@planted("align_experts")
def filled_with_a_choice(topk_ids: Tensor, *, num_experts: int, block_size: int) -> Any:
    """A run is filled up with T * k - 1, which is a choice."""
    ids, experts, padded = right(
        "align_experts", topk_ids, num_experts=num_experts, block_size=block_size
    )
    live = ids[: int(padded)]
    live[live == topk_ids.numel()] = topk_ids.numel() - 1
    return ids, experts, padded


@planted("align_experts")
def second_block_of_the_next_expert(topk_ids: Tensor, *, num_experts: int, block_size: int) -> Any:
    """The second block of an expert counts as the next one's."""
    ids, experts, padded = right(
        "align_experts", topk_ids, num_experts=num_experts, block_size=block_size
    )
    blocks = int(padded) // block_size
    same = torch.zeros(blocks, dtype=torch.bool)
    same[1:] = experts[1:blocks] == experts[: blocks - 1]
    experts[:blocks][same] += 1
    return ids, experts, padded


@planted("write_kv", blames=("graph.pad_rows",))
def rope_of_the_token_before(
    kv_c: Tensor, k_pe: Tensor, kv_cache: Tensor, slot_mapping: Tensor, **keywords: Any
) -> None:
    """A token behind a padded one gets the rope key of that one."""
    behind = (slot_mapping.roll(1) < 0) & (slot_mapping >= 0)
    behind[0] = False
    rows = torch.arange(len(slot_mapping)) - behind.long()
    right("write_kv", kv_c, k_pe[rows], kv_cache, slot_mapping, **keywords)


@planted("read_records", kv=FORMATS)
def last_token_of_a_page_is_the_one_before(
    cache: Tensor, block_table: Tensor, cu_seq_lens: Tensor, **keywords: Any
) -> Any:
    """The last token of a whole page is the one before it."""
    found = right("read_records", cache, block_table, cu_seq_lens, **keywords)
    for start, end in zip(cu_seq_lens.tolist(), cu_seq_lens[1:].tolist(), strict=False):
        if (end - start) % 64 == 0 and end > start:
            found[end - 1] = found[end - 2]
    return found


@planted("write_records", kv=FORMATS)
def last_row_stored_at_half_size(
    x: Tensor, cache: Tensor, slot_mapping: Tensor, **keywords: Any
) -> None:
    """The last row of a call is stored at half its size."""
    x = x.clone()
    x[len(slot_mapping) - 1] *= 0.5
    live = (slot_mapping >= 0).nonzero().flatten()
    x[live[-1]] *= 0.5
    right("write_records", x, cache, slot_mapping, **keywords)


@planted("map_indices")
def first_slot_of_a_page_in_the_page_before(
    positions: Tensor, block_table: Tensor, requests: Tensor, *, page_size: int
) -> Tensor:
    """A position that begins a page is looked up in the page before."""
    found: Tensor = right("map_indices", positions, block_table, requests, page_size=page_size)
    begins = (positions % page_size == 0) & (positions > 0)
    before = right(
        "map_indices", (positions - 1).clamp(min=-1), block_table, requests, page_size=page_size
    )
    return torch.where(begins, before, found)


@planted("map_indices")
def request_of_the_next_token(
    positions: Tensor, block_table: Tensor, requests: Tensor, *, page_size: int
) -> Tensor:
    """The last token takes the request of the token behind it, if there is one."""
    owners = requests.clone()
    if len(requests) > len(positions):
        owners[len(positions) - 1] = requests[len(positions)]
    found: Tensor = right("map_indices", positions, block_table, owners, page_size=page_size)
    return found
