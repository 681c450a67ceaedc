"""Kernels that are right at the sizes of tests, and wrong at those of released models.

A counter of 8 or 16 bits, a buffer or a grid of a fixed size, a mask of one word: the ways in which
a size ends. Each is right below its limit.
"""

from __future__ import annotations

import itertools
from typing import Any, get_args

import torch
from torch import Tensor

from harness.core.call_words import RecordFormat
from trust.planted.plant import planted, right

FORMATS = get_args(RecordFormat)


@planted("select_topk")
def topk_buffer_of_1024(logits: Tensor, seq_lens: Tensor, *, topk: int) -> Tensor:
    """Sorts in a buffer of 1,024 entries: later ranks stay -1."""
    found = right("select_topk", logits, seq_lens, topk=topk)
    found[:, 1024:] = -1
    return found


@planted("select_topk")
def topk_position_in_16_bits(logits: Tensor, seq_lens: Tensor, *, topk: int) -> Tensor:
    """Keeps a position in 16 bits."""
    found = right("select_topk", logits, seq_lens, topk=topk)
    return torch.where(found >= 0, found % 65536, found)


@planted("select_topk")
def topk_grid_of_256_rows(logits: Tensor, seq_lens: Tensor, *, topk: int) -> Tensor:
    """Has 256 blocks, one a row: later rows are those of the first."""
    found = right("select_topk", logits, seq_lens, topk=topk)
    found[256:] = found[:1]
    return found


@planted("mla_decode_sparse")
def sparse_32_tiles(q: Tensor, kv_cache: Tensor, indices: Tensor, **keywords: Any) -> Any:
    """Reads at most 16 tiles of 64 slots of a list."""
    return right("mla_decode_sparse", q, kv_cache, indices[:, :1024].contiguous(), **keywords)


@planted("mla_decode_sparse", blames=("kv.free", "kv.null"))
def sparse_slot_in_16_bits(q: Tensor, kv_cache: Tensor, indices: Tensor, **keywords: Any) -> Any:
    """Keeps a slot in 16 bits."""
    slots = torch.where(indices >= 0, indices % 65536, indices)
    return right("mla_decode_sparse", q, kv_cache, slots, **keywords)


@planted("mla_decode_sparse", blames=("output", "lse"))
def sparse_256_tokens(q: Tensor, kv_cache: Tensor, indices: Tensor, **keywords: Any) -> Any:
    """Counts the tokens of a call in a byte: token 256 has the list of token 0."""
    tokens = torch.arange(len(q)) % 256
    return right("mla_decode_sparse", q, kv_cache, indices[tokens], **keywords)


@planted("index_logits")
def logits_mask_of_64_requests(
    q: Tensor, weights: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor
) -> Tensor:
    """Keeps the live requests in a mask of 64 bits: later ones score 0."""
    found: Tensor = right("index_logits", q, weights, kv_cache, block_table, seq_lens)
    found[64 * q.shape[1] :] = 0.0
    return found


@planted("index_logits")
def logits_of_128_pages(
    q: Tensor, weights: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor
) -> Tensor:
    """Has room for 128 entries of a row of the table."""
    found: Tensor = right("index_logits", q, weights, kv_cache, block_table, seq_lens)
    found[:, 128 * 64 :] = 0.0
    return found


@planted("index_logits")
def logits_of_64_tokens(
    q: Tensor, weights: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor
) -> Tensor:
    """Has a tile of 64 query tokens: later ones take the weights of the first."""
    weights = weights.clone()
    weights[:, 64:] = weights[:, :1]
    found: Tensor = right("index_logits", q, weights, kv_cache, block_table, seq_lens)
    return found


@planted("quantize_fp8", takes=("num_live",))
def amax_of_1024_elements(x: Tensor, *, num_live: int | None = None) -> Any:
    """Looks for the largest element among the first 1,024 of a row."""
    scale = right("quantize_fp8", x[:, :1024], num_live=num_live)[1]
    return (x.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale


@planted("quantize_fp8", takes=("num_live",))
def amax_of_1024_rows(x: Tensor, *, num_live: int | None = None) -> Any:
    """Looks for the largest element in the first 1,024 rows: one for each thread of a block."""
    live = len(x) if num_live is None else int(num_live)
    scale = right("quantize_fp8", x[:1024], num_live=min(live, 1024))[1]
    return (x.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale


@planted("quantize_blocks")
def blocks_of_64_experts(x: Tensor, expert_offsets: Tensor, *, block_format: str) -> Any:
    """Counts experts in a mask of 64 bits: rows of later ones have scales of code 0."""
    values, scales = right("quantize_blocks", x, expert_offsets, block_format=block_format)
    counts = expert_offsets.diff()[:64].long()
    scales[int(((counts + 127) // 128 * 128).sum()) :] = 0
    return values, scales


@planted("quantize_blocks")
def blocks_of_256_experts(x: Tensor, expert_offsets: Tensor, *, block_format: str) -> Any:
    """Counts experts in a byte: rows of expert 256 and later have scales of code 0."""
    values, scales = right("quantize_blocks", x, expert_offsets, block_format=block_format)
    counts = expert_offsets.diff()[:256].long()
    scales[int(((counts + 127) // 128 * 128).sum()) :] = 0
    return values, scales


@planted("quantize_blocks")
def blocks_of_1024_elements(x: Tensor, expert_offsets: Tensor, *, block_format: str) -> Any:
    """Has a tile of 1,024 elements of a row: later blocks have the scale of the first."""
    values, scales = right("quantize_blocks", x, expert_offsets, block_format=block_format)
    past = 1024 // (16 if block_format == "nvfp4" else 32)
    scales[:, past:] = scales[:, :1]
    return values, scales


@planted("route_experts")
def expert_in_a_byte(logits: Tensor, *, num_experts_per_tok: int) -> Any:
    """Keeps the number of an expert in a byte."""
    ids, weights = right("route_experts", logits, num_experts_per_tok=num_experts_per_tok)
    return ids % 256, weights


@planted("route_experts")
def router_of_512_experts(logits: Tensor, *, num_experts_per_tok: int) -> Any:
    """Reads the logits of at most 512 experts."""
    return right("route_experts", logits[:, :512], num_experts_per_tok=num_experts_per_tok)


@planted("route_experts")
def router_of_12_choices(logits: Tensor, *, num_experts_per_tok: int) -> Any:
    """Has registers for 12 choices of a token: later ones weigh nothing."""
    ids, weights = right("route_experts", logits, num_experts_per_tok=num_experts_per_tok)
    weights[:, 12:] = 0.0
    return ids, weights / weights.sum(dim=1, keepdim=True)


@planted("align_experts")
def run_in_a_byte(topk_ids: Tensor, *, num_experts: int, block_size: int) -> Any:
    """Counts the choices of an expert in a byte: choice 256 and later stand nowhere."""
    ids, experts, padded = right(
        "align_experts", topk_ids, num_experts=num_experts, block_size=block_size
    )
    choices = topk_ids.flatten().long()
    for expert in range(num_experts):
        late = (choices == expert).nonzero().flatten()[255:]
        ids[torch.isin(ids, late.to(ids.dtype))] = len(choices)
    return ids, experts, padded


@planted("align_experts")
def choices_in_16_bits(topk_ids: Tensor, *, num_experts: int, block_size: int) -> Any:
    """Keeps the number of a choice in 16 bits."""
    ids, experts, padded = right(
        "align_experts", topk_ids, num_experts=num_experts, block_size=block_size
    )
    ids[: int(padded)] %= 65536
    return ids, experts, padded


@planted("align_experts")
def alignment_of_512_experts(topk_ids: Tensor, *, num_experts: int, block_size: int) -> Any:
    """Has counters for 512 experts: a later one counts as the last of them."""
    ids, experts, padded = right(
        "align_experts", topk_ids, num_experts=num_experts, block_size=block_size
    )
    blocks = int(padded) // block_size
    experts[:blocks] = experts[:blocks].clamp(max=511)
    return ids, experts, padded


@planted("read_records", kv=FORMATS)
def records_of_8_pages(
    cache: Tensor, block_table: Tensor, cu_seq_lens: Tensor, **keywords: Any
) -> Any:
    """Loads eight entries of the table: later pages are the eighth."""
    table = block_table.clone()
    table[:, 8:] = table[:, 7:8]
    return right("read_records", cache, table, cu_seq_lens, **keywords)


@planted("read_records", kv=FORMATS)
def records_of_64_pages(
    cache: Tensor, block_table: Tensor, cu_seq_lens: Tensor, **keywords: Any
) -> Any:
    """Has room for 64 entries of the table: later pages are the last of them."""
    table = block_table.clone()
    table[:, 64:] = table[:, 63:64]
    return right("read_records", cache, table, cu_seq_lens, **keywords)


@planted("read_records", kv=FORMATS)
def records_of_64_requests(
    cache: Tensor, block_table: Tensor, cu_seq_lens: Tensor, **keywords: Any
) -> Any:
    """Searches 64 offsets for the request of a token: later requests are the 64th."""
    table = block_table.clone()
    table[64:] = table[63:64]
    return right("read_records", cache, table, cu_seq_lens, **keywords)


@planted("write_kv", blames=("kv.free", "kv.null"))
def stored_slot_in_16_bits(
    kv_c: Tensor, k_pe: Tensor, kv_cache: Tensor, slot_mapping: Tensor, **keywords: Any
) -> None:
    """Keeps a slot in 16 bits."""
    slots = torch.where(slot_mapping >= 0, slot_mapping % 65536, slot_mapping)
    right("write_kv", kv_c, k_pe, kv_cache, slots, **keywords)


@planted("write_kv")
def stored_1024_tokens(
    kv_c: Tensor, k_pe: Tensor, kv_cache: Tensor, slot_mapping: Tensor, **keywords: Any
) -> None:
    """Stores at most 1,024 tokens of a call."""
    right("write_kv", kv_c, k_pe, kv_cache, slot_mapping[:1024], **keywords)


@planted("write_records", kv=FORMATS, blames=("kv.free", "kv.null", "kv.new"))
def recorded_slot_in_16_bits(
    x: Tensor, cache: Tensor, slot_mapping: Tensor, **keywords: Any
) -> None:
    """Keeps a slot in 16 bits."""
    slots = torch.where(slot_mapping >= 0, slot_mapping % 65536, slot_mapping)
    right("write_records", x, cache, slots, **keywords)


@planted("write_records", kv=FORMATS, blames=("kv.new",))
def recorded_512_tokens(x: Tensor, cache: Tensor, slot_mapping: Tensor, **keywords: Any) -> None:
    """Stores at most 512 tokens of a call."""
    right("write_records", x, cache, slot_mapping[:512], **keywords)


@planted("map_indices")
def mapped_list_of_1024(
    positions: Tensor, block_table: Tensor, requests: Tensor, *, page_size: int
) -> Tensor:
    """Maps 1,024 positions of a list, and leaves the others as they are."""
    found: Tensor = right("map_indices", positions, block_table, requests, page_size=page_size)
    found[:, 1024:] = positions[:, 1024:]
    return found


@planted("map_indices")
def mapped_column_in_a_byte(
    positions: Tensor, block_table: Tensor, requests: Tensor, *, page_size: int
) -> Tensor:
    """Keeps the column of the table in a byte."""
    near = torch.where(positions >= 0, positions % (256 * page_size), positions)
    found: Tensor = right("map_indices", near, block_table, requests, page_size=page_size)
    return found


@planted("map_indices")
def mapped_request_in_a_byte(
    positions: Tensor, block_table: Tensor, requests: Tensor, *, page_size: int
) -> Tensor:
    """Keeps the request of a token in a byte."""
    found: Tensor = right(
        "map_indices", positions, block_table, requests % 256, page_size=page_size
    )
    return found


@planted("context_attention")
def queries_of_128_rows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_start_loc: Tensor,
    chunk_start_loc: Tensor,
    **keywords: Any,
) -> Any:
    """Has one tile of 128 query tokens: later tokens of a request are the last of them."""
    kept = torch.arange(len(q))
    for start, end in zip(query_start_loc.tolist(), query_start_loc[1:].tolist(), strict=False):
        kept[start + 128 : end] = start + 127
    return right("context_attention", q[kept], k, v, query_start_loc, chunk_start_loc, **keywords)


@planted("context_attention")
def context_of_1024_keys(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_start_loc: Tensor,
    chunk_start_loc: Tensor,
    **keywords: Any,
) -> Any:
    """Has a loop of at most 16 tiles of 64 keys."""
    bounds = chunk_start_loc.tolist()
    kept = [torch.arange(a, min(b, a + 1024)) for a, b in itertools.pairwise(bounds)]
    starts = torch.tensor([0, *map(len, kept)]).cumsum(0).to(torch.int32)
    rows = torch.cat(kept)
    return right("context_attention", q, k[rows], v[rows], query_start_loc, starts, **keywords)


@planted("context_attention")
def offset_in_16_bits(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_start_loc: Tensor,
    chunk_start_loc: Tensor,
    **keywords: Any,
) -> Any:
    """Keeps the row of a key in 16 bits."""
    rows = torch.arange(len(k)) % 65536
    return right(
        "context_attention", q, k[rows], v[rows], query_start_loc, chunk_start_loc, **keywords
    )


@planted("merge_attn_states")
def merged_1024_tokens(
    prefix_out: Tensor, prefix_lse: Tensor, suffix_out: Tensor, suffix_lse: Tensor, **keywords: Any
) -> Any:
    """Has a grid of 1,024 tokens: later ones are copied from the suffix."""
    out, lse = right(
        "merge_attn_states", prefix_out, prefix_lse, suffix_out, suffix_lse, **keywords
    )
    out[1024:], lse[:, 1024:] = suffix_out[1024:], suffix_lse[:, 1024:]
    return out, lse


@planted("mla_decode", takes=("window",))
def decode_of_128_tokens(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, **keywords: Any
) -> Any:
    """Has one tile of 128 query tokens: later ones are the last of them."""
    kept = torch.arange(q.shape[1]).clamp(max=127)
    return right("mla_decode", q[:, kept], kv_cache, block_table, seq_lens, **keywords)


@planted("mla_decode", takes=("window",))
def decode_of_256_requests(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, **keywords: Any
) -> Any:
    """Keeps the request in a byte."""
    rows = torch.arange(len(q)) % 256
    return right("mla_decode", q[rows], kv_cache, block_table, seq_lens, **keywords)


@planted("mla_decode", takes=("window",))
def decode_of_512_pages(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, **keywords: Any
) -> Any:
    """Keeps the column of the table in nine bits: a request has 32,768 tokens at most."""
    columns = torch.arange(block_table.shape[1]) % 512
    return right("mla_decode", q, kv_cache, block_table[:, columns], seq_lens, **keywords)


@planted("mla_decode", takes=("window",))
def decode_page_looked_up_once_for_64_slots(
    q: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor, **keywords: Any
) -> Any:
    """Looks one page up for a tile of 64 slots (flashinfer-ai/flashinfer#3022)."""
    pages = max(64 // kv_cache.shape[1], 1)
    first = torch.arange(block_table.shape[1]) // pages * pages
    return right("mla_decode", q, kv_cache, block_table[:, first], seq_lens, **keywords)
