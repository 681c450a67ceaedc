"""Wrong kernels of the other ops that were written without a look at the cases: thresholds, bits,
vector loads, compacted rows, decodes that take another path than prompts.
"""

from __future__ import annotations

from typing import Any, get_args

import torch
from torch import Tensor

from harness.core.call_words import RecordFormat
from trust.planted.plant import planted, right

FORMATS = get_args(RecordFormat)
COUNTS: dict[tuple[int, ...], int] = {}
"""The live rows that `live_rows_of_the_first_call` keeps, by the shape of its input."""


@planted("index_logits")
def relu_of_the_sum(
    q: Tensor, weights: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor
) -> Tensor:
    """The sum over heads is cut at 0 once more: a negative score is 0."""
    found: Tensor = right("index_logits", q, weights, kv_cache, block_table, seq_lens)
    return found.clamp(min=0)


@planted("index_logits")
def weights_of_the_last_token(
    q: Tensor, weights: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor
) -> Tensor:
    """All tokens of a request weigh their heads as its last one does."""
    weights = weights[:, -1:].expand_as(weights).contiguous()
    found: Tensor = right("index_logits", q, weights, kv_cache, block_table, seq_lens)
    return found


@planted("index_logits")
def last_column_of_the_table_is_left_out(
    q: Tensor, weights: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor
) -> Tensor:
    """Reads M - 1 entries of a row of the table: keys of the last one score 0."""
    found: Tensor = right("index_logits", q, weights, kv_cache, block_table, seq_lens)
    columns = block_table.shape[1]
    if columns > 1:
        found[:, (columns - 1) * kv_cache.shape[1] :] = 0.0
    return found


@planted("select_topk")
def one_of_the_ties_at_the_border(logits: Tensor, seq_lens: Tensor, *, topk: int) -> Tensor:
    """Of several choices that equal the least one, one alone is kept."""
    found: Tensor = right("select_topk", logits, seq_lens, topk=topk)
    width = logits.shape[1]
    chosen = logits.gather(1, found.long().clamp(min=0, max=width - 1))
    chosen = chosen.masked_fill(found < 0, float("inf"))
    ties = chosen == chosen.amin(dim=1, keepdim=True)
    ties &= (found >= 0).all(dim=1, keepdim=True)
    return found.masked_fill(ties & (ties.long().cumsum(dim=1) > 1), -1)


@planted("select_topk")
def negative_scores_in_reverse(logits: Tensor, seq_lens: Tensor, *, topk: int) -> Tensor:
    """Compares the bits of floats as signed integers: negative ones stand in reverse."""
    bits = logits.contiguous().view(torch.int32)
    keys = torch.where(bits < 0, torch.iinfo(torch.int32).min + (bits & 0x7FFFFFFF), bits)
    found: Tensor = right("select_topk", keys.float(), seq_lens, topk=topk)
    return found


@planted("select_topk")
def short_rows_see_the_whole_request(logits: Tensor, seq_lens: Tensor, *, topk: int) -> Tensor:
    """Rows of requests that are no longer than K choose all positions of the request."""
    found: Tensor = right("select_topk", logits, seq_lens, topk=topk)
    tokens = len(logits) // max(len(seq_lens), 1)
    lengths = seq_lens.repeat_interleave(tokens)[:, None]
    places = torch.arange(topk, dtype=found.dtype).expand_as(found)
    every = torch.where(places < lengths, places, -1)
    return torch.where((lengths <= topk) & (lengths > 0), every, found)


@planted("quantize_fp8", takes=("num_live",))
def amax_of_whole_vectors(x: Tensor, *, num_live: int | None = None) -> Any:
    """Loads four elements at once: a rest of a row takes no part in the largest."""
    whole = x.shape[1] // 4 * 4 or x.shape[1]
    scale = right("quantize_fp8", x[:, :whole].contiguous(), num_live=num_live)[1]
    return (x.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale


@planted("quantize_fp8", takes=("num_live",), blames=("scale.pad",))
def live_rows_of_the_first_call(x: Tensor, *, num_live: Any = None) -> Any:
    """Reads the number of live rows once for each shape, and keeps it."""
    live = len(x) if num_live is None else int(num_live)
    kept = COUNTS.setdefault(tuple(x.shape), live)
    return right("quantize_fp8", x, num_live=kept)


@planted("quantize_fp8", takes=("num_live",))
def codes_are_cut_off(x: Tensor, *, num_live: Any = None) -> Any:
    """Rounds toward 0, not to the nearest code."""
    codes, scale = right("quantize_fp8", x, num_live=num_live)
    exact = x.float() / scale
    is_above = codes.float().abs() > exact.abs()
    bits = codes.view(torch.uint8)
    return torch.where(is_above, bits - 1, bits).view(torch.float8_e4m3fn), scale


def _starts(expert_offsets: Tensor, tile: int) -> list[tuple[int, int]]:
    """The first scale row of each expert, and the number of its rows, with runs of whole tiles."""
    found = []
    start = 0
    for count in expert_offsets.diff().tolist():
        found.append((start, count))
        start += -(-count // tile) * tile
    return found


@planted("quantize_blocks")
def scales_without_whole_tiles(x: Tensor, expert_offsets: Tensor, *, block_format: str) -> Any:
    """The scales of an expert stand right behind those of the one before."""
    values, scales = right("quantize_blocks", x, expert_offsets, block_format=block_format)
    packed = torch.zeros_like(scales)
    at = 0
    for start, count in _starts(expert_offsets, 128):
        packed[at : at + count] = scales[start : start + count]
        at += count
    return values, packed


@planted("quantize_blocks")
def empty_experts_take_a_tile(x: Tensor, expert_offsets: Tensor, *, block_format: str) -> Any:
    """An expert without rows takes a tile of scales as well, as far as there is room."""
    values, scales = right("quantize_blocks", x, expert_offsets, block_format=block_format)
    moved = torch.zeros_like(scales)
    shift = 0
    for start, count in _starts(expert_offsets, 128):
        shift += 128 * (not count)
        rows = scales[start : start + count]
        room = moved[start + shift : start + shift + count]
        room.copy_(rows[: len(room)])
    return values, moved


@planted("quantize_blocks")
def last_block_has_the_scale_before(x: Tensor, expert_offsets: Tensor, *, block_format: str) -> Any:
    """In rows of an odd number of blocks the last one stores the scale of the block before it."""
    values, scales = right("quantize_blocks", x, expert_offsets, block_format=block_format)
    block = 16 if block_format == "nvfp4" else 32
    blocks = x.shape[1] // block
    if blocks % 2 and blocks > 1:
        scales[:, blocks - 1] = scales[:, blocks - 2]
    return values, scales


@planted("read_records", kv=FORMATS, blames=("block_table.pad",))
def empty_requests_have_no_row(
    cache: Tensor, block_table: Tensor, cu_seq_lens: Tensor, **keywords: Any
) -> Any:
    """Rows of the table are counted over the requests that have tokens."""
    lengths = cu_seq_lens.diff()
    rows = ((lengths > 0).long().cumsum(0) - 1).clamp(min=0)
    return right("read_records", cache, block_table[rows], cu_seq_lens, **keywords)


@planted("read_records", kv=FORMATS, blames=("output",))
def last_of_odd_tokens_is_unwritten(
    cache: Tensor, block_table: Tensor, cu_seq_lens: Tensor, **keywords: Any
) -> Any:
    """Writes two tokens at once: the last of an odd number is not written."""
    found = right("read_records", cache, block_table, cu_seq_lens, **keywords)
    written = torch.empty_like(found)
    count = len(found) // 2 * 2
    written[:count] = found[:count]
    return written


@planted("write_records", kv=FORMATS, blames=("graph.pad_rows",))
def rows_are_compacted(x: Tensor, cache: Tensor, slot_mapping: Tensor, **keywords: Any) -> None:
    """Reads the n-th row for the n-th token that is stored, as if padding had no rows."""
    live = slot_mapping >= 0
    rows = (live.long().cumsum(0) - 1).clamp(min=0)
    padded = torch.cat((x[rows], x[len(slot_mapping) :]))
    right("write_records", padded, cache, slot_mapping, **keywords)


@planted("write_records", kv=FORMATS, blames=("kv.new",))
def last_of_a_power_of_two_is_lost(
    x: Tensor, cache: Tensor, slot_mapping: Tensor, **keywords: Any
) -> None:
    """The last of 2, 4, 8, ... tokens is not stored."""
    count = len(slot_mapping)
    slots = slot_mapping.clone()
    if count > 1 and count & (count - 1) == 0:
        slots[-1] = -1
    right("write_records", x, cache, slots, **keywords)


@planted("write_kv")
def one_token_has_its_rope_in_halves(
    kv_c: Tensor, k_pe: Tensor, kv_cache: Tensor, slot_mapping: Tensor, **keywords: Any
) -> None:
    """A call of one token stores the rope key in halves, where others store pairs."""
    if len(slot_mapping) == 1:
        k_pe = k_pe.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2).contiguous()
    right("write_kv", kv_c, k_pe, kv_cache, slot_mapping, **keywords)


@planted("route_experts")
def chosen_by_bf16_logits(logits: Tensor, *, num_experts_per_tok: int) -> Any:
    """Chooses by logits that are rounded to bfloat16."""
    ids, _ = right(
        "route_experts", logits.bfloat16().float(), num_experts_per_tok=num_experts_per_tok
    )
    return ids, logits.float().gather(1, ids.long()).softmax(dim=1)


@planted("align_experts")
def last_of_odd_tokens_has_no_expert(topk_ids: Tensor, *, num_experts: int, block_size: int) -> Any:
    """Two tokens are counted at once: the choices of the last of an odd number are left out."""
    ids, experts, padded = right(
        "align_experts", topk_ids, num_experts=num_experts, block_size=block_size
    )
    tokens, k = topk_ids.shape
    if tokens % 2 and tokens > 1:
        live = ids[: int(padded)]
        live[(live >= (tokens - 1) * k) & (live < tokens * k)] = tokens * k
    return ids, experts, padded


@planted("map_indices")
def rows_without_positions_keep_those_before(
    positions: Tensor, block_table: Tensor, requests: Tensor, *, page_size: int
) -> Tensor:
    """A row without any position has the slots of the row before it."""
    found: Tensor = right("map_indices", positions, block_table, requests, page_size=page_size)
    empty = (positions < 0).all(dim=1)
    empty[:1] = False
    return torch.where(empty[:, None], found.roll(1, dims=0), found)
