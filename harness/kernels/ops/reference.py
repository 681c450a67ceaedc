"""The expected result of each op, in float64, from live memory alone.

A reference gathers exactly the memory that its op may depend on. It repairs no value: a NaN in live
memory stays a NaN. Rows that an op leaves undefined are NaN, and `defined` is false for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from harness.core.ops import PAGE_SIZE, latent_rank
from harness.kernels.ops.block_formats import (
    FORMATS,
    SCALE_TILE,
    BlockFormat,
    magnitudes,
    num_scale_rows,
)
from harness.kernels.ops.record_formats import decode

E4M3_MAX = 448.0
LEAST_LSE = 32.0  # Smaller log-sum-exps are rounded within every bound: by 2^-18 of a weight.
_NAN = float("nan")


class Attention(NamedTuple):
    """out and lse in float64, a row for each token, and which rows are defined.

    `slack` has how far roundings that a case makes large move each element of out and lse. See
    :class:`Rounding`.
    """

    out: Tensor
    lse: Tensor
    defined: Tensor
    slack: tuple[Tensor, Tensor] | None = None


class Rounding(NamedTuple):
    """The largest roundings of a kernel.

    In float32 (`weight` is 0) only the log-sum-exps of merged pieces count.

    `query` and `weight` are shares of an element of the query, and of a probability, and
    `least_query` and `least_weight` their least: e4m3 has no finer steps below its normal numbers.
    `product` is a share of a product.
    """

    query: float = 0.0
    least_query: float = 0.0
    product: float = 0.0
    weight: float = 2.0**-8
    least_weight: float = 0.0

    @classmethod
    def of(cls, products: str, q: Tensor, cache_dtype: torch.dtype) -> Rounding:
        """The roundings of a kernel by its `fp8_products`, for queries q [..., D] of one scale for
        all of them.
        """
        if products == "fp8":
            return cls(2.0**-4, float(q.abs().max()) / E4M3_MAX * 2.0**-10, 0.0, 2.0**-4, 2.0**-10)
        # A key is rounded once. FlashMLA also rounds the scale of a record.
        return (
            cls(product=2.0**-7 if cache_dtype == torch.uint8 else 2.0**-8)
            if products == "bf16"
            else cls(weight=0)
        )

    def slack(
        self, q: Tensor, keys: Tensor, scale: float, weights: Tensor, out: Tensor, lse: Tensor
    ) -> tuple[Tensor, Tensor] | None:
        """What a row may be off, or None: q [H, D], keys [n, D], weights [H, n], out [H, R], lse
        [H] -> out, lse.

        All are float64. Roundings add as squares. A score that is off by d moves its weight w by w
        (e^d - 1).
        """
        values = keys[:, : out.shape[1]]
        if not self.weight and not (lse.abs() > LEAST_LSE).any():
            return None
        if not self.weight:
            # A piece is weighed by e^(its lse - lse of all), both rounded. One that has all the
            # weight has exactly 1.
            moved = torch.minimum(lse.abs() * 2.0**-23, weights.amax(1).log().abs())
            return moved[:, None] * (weights @ values.abs()), torch.zeros_like(lse)
        query = (q.abs() * self.query).clamp(min=self.least_query) + q.abs() * self.product
        moved = (query.square() @ keys.square().T).sqrt() * scale
        rounded = torch.maximum(
            weights * self.weight, weights.amax(1, keepdim=True) * self.least_weight
        )
        square = (weights * moved.clamp(max=700).expm1()).clamp(max=1).square() + rounded.square()
        off = (
            square @ values.square()
            - 2 * (square @ values) * out
            + square.sum(1, keepdim=True) * out.square()
        )
        tilted = (weights.clamp(min=1e-300).log() + moved).softmax(dim=1)
        return off.clamp(min=0).sqrt(), (tilted * moved).square().sum(1).sqrt()


class Quantized(NamedTuple):
    """x8 before its rounding to e4m3 (NaN in padded rows), the scale, and the live rows."""

    scaled: Tensor
    scale: Tensor
    live: Tensor


class Aligned(NamedTuple):
    """The live entries of `align_experts`, and the expert of each live block: int64."""

    sorted_ids: Tensor
    expert_ids: Tensor


class Routed(NamedTuple):
    """Expert ids [T, k] int64 in ascending order, and their weights [T, k] float64."""

    ids: Tensor
    weights: Tensor


class Blocks(NamedTuple):
    """Elements [T, K] before scaling back (NaN in rows of no expert), scales [S, G], and the
    experts' rows [T] bool.
    """

    values: Tensor
    scales: Tensor
    live: Tensor


def dequantized(stored: Tensor, kv_scale: float | None) -> Tensor:
    """Cache elements of any type and shape as float64 values."""
    return stored.float().double() * (1.0 if kv_scale is None else kv_scale)


def gather_latents(kv_cache: Tensor, block_row: Tensor, num_tokens: int) -> Tensor:
    """The first `num_tokens` slots of one request, no others: [num_tokens, D] in the cache's
    type.
    """
    positions = torch.arange(num_tokens, device=kv_cache.device)
    block = block_row.to(torch.int64)[positions // PAGE_SIZE]
    assert num_tokens == 0 or 0 <= int(block.min()) <= int(block.max()) < kv_cache.shape[0], (
        "a live page is no page"
    )
    # By two indices, because a flat view of padded pages is a copy.
    return kv_cache[block, positions % PAGE_SIZE]


def _attended(
    q: Tensor, seen: Iterable[tuple[int, Tensor]], scale: float, rounding: Rounding
) -> Attention:
    """Attention of tokens q [T, H, D]:

    `seen` has the number and the keys [n, D] float64 of a token. lse is [T, H].
    """
    rank = latent_rank(q.shape[-1])
    out = torch.full((*q.shape[:2], rank), _NAN, dtype=torch.float64, device=q.device)
    lse, defined = (
        torch.full_like(out[..., 0], _NAN),
        torch.zeros(len(q), dtype=torch.bool, device=q.device),
    )
    slack: tuple[Tensor, Tensor] | None = None
    for t, keys in seen:
        query = q[t].double()
        scores = query @ keys.T * scale
        weights = scores.softmax(dim=-1)
        out[t], lse[t], defined[t] = weights @ keys[:, :rank], scores.logsumexp(dim=-1), True
        if moved := rounding.slack(query, keys, scale, weights, out[t], lse[t]):
            slack = slack or (torch.zeros_like(out), torch.zeros_like(lse))
            slack[0][t], slack[1][t] = moved
    return Attention(out, lse, defined, slack)


def mla_decode(
    q: Tensor,
    kv_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    *,
    scale: float,
    kv_scale: float | None = None,
    window: int | None = None,
    products: str = "float32",
) -> Attention:
    """out [B * S, H, R], lse [B * S, H], defined [B * S]: a query token without keys is
    undefined.
    """
    num_query_tokens = q.shape[1]

    def seen() -> Iterator[tuple[int, Tensor]]:
        for b, length in enumerate(seq_lens.tolist()):
            keys = dequantized(gather_latents(kv_cache, block_table[b], length), kv_scale)
            for s, visible in enumerate(range(length - num_query_tokens + 1, length + 1)):
                if visible > 0:
                    yield (
                        b * num_query_tokens + s,
                        keys[0 if window is None else max(visible - window, 0) : visible],
                    )

    return _attended(q.flatten(0, 1), seen(), scale, Rounding.of(products, q, kv_cache.dtype))


def mla_decode_sparse(
    q: Tensor,
    kv_cache: Tensor,
    indices: Tensor,
    *,
    scale: float,
    kv_scale: float | None = None,
    products: str = "float32",
) -> Attention:
    """out [T, H, R], lse [T, H], defined [T]: a token whose indices are all negative is
    undefined.
    """

    def seen() -> Iterator[tuple[int, Tensor]]:
        for t in (indices >= 0).any(dim=1).nonzero().flatten().tolist():
            slots = indices[t][indices[t] >= 0].tolist()
            records = torch.stack([kv_cache[divmod(slot, kv_cache.shape[1])] for slot in slots])
            is_packed = records.dtype == torch.uint8
            yield t, decode(records, "fp8_ds_mla") if is_packed else dequantized(records, kv_scale)

    return _attended(q, seen(), scale, Rounding.of(products, q, kv_cache.dtype))


def context_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_start_loc: Tensor,
    chunk_start_loc: Tensor,
    *,
    scale: float,
) -> Attention:
    """out [T, H, V], lse [H, T], defined [T]: a token without keys in this chunk is undefined."""
    num_tokens, num_heads, _ = q.shape
    out = torch.full(
        (num_tokens, num_heads, v.shape[-1]), _NAN, dtype=torch.float64, device=q.device
    )
    lse = torch.full((num_heads, num_tokens), _NAN, dtype=torch.float64, device=q.device)
    defined = torch.zeros(num_tokens, dtype=torch.bool, device=q.device)
    queries, chunks = query_start_loc.tolist(), chunk_start_loc.tolist()
    for b in range(len(queries) - 1):
        rows, keys = slice(queries[b], queries[b + 1]), slice(chunks[b], chunks[b + 1])
        if keys.start == keys.stop:
            continue
        scores = torch.einsum("thd,chd->htc", q[rows].double(), k[keys].double()) * scale
        lse[:, rows] = scores.logsumexp(dim=-1)
        out[rows] = torch.einsum("htc,chv->thv", scores.softmax(dim=-1), v[keys].double())
        defined[rows] = True
    return Attention(out, lse, defined)


def with_context(query_start_loc: Tensor, chunk_start_loc: Tensor, num_tokens: int) -> Tensor:
    """The tokens [T] bool that have keys in a context chunk.

    A context kernel promises no other row.

    query_start_loc and chunk_start_loc: [B + 1] int32, the offsets of the tokens and keys of B
    prompts.
    """
    lengths = query_start_loc.diff().long().cpu()
    has_keys = (chunk_start_loc.diff() > 0).cpu()
    rows = torch.repeat_interleave(has_keys, lengths)
    return torch.cat((rows, torch.zeros(num_tokens - rows.shape[0], dtype=torch.bool)))


def merge_attn_states(
    prefix_out: Tensor,
    prefix_lse: Tensor,
    suffix_out: Tensor,
    suffix_lse: Tensor,
    *,
    num_tokens_with_context: int | None = None,
) -> Attention:
    """out [T, H, V], lse [H, T], defined [T] (all).

    A side counts only where its lse is finite or NaN.
    """
    num_tokens = prefix_out.shape[0]
    merged = num_tokens if num_tokens_with_context is None else num_tokens_with_context
    out, lse = suffix_out.double().clone(), suffix_lse.double().clone()
    if merged:
        logs = torch.stack([side[:, :merged].double() for side in (prefix_lse, suffix_lse)])
        values = torch.stack([side[:merged].double() for side in (prefix_out, suffix_out)])
        # An infinity of either sign marks a side without keys. It is selected away: a weight of 0
        # would keep its NaN.
        has_keys = ~logs.isinf()
        logs = torch.where(has_keys, logs, -torch.inf)
        no_keys = ~has_keys.any(dim=0)
        weights = torch.where(no_keys, 0.0, logs.softmax(dim=0)).transpose(1, 2)[..., None]
        shown = torch.where(has_keys.transpose(1, 2)[..., None], values, 0.0)
        out[:merged] = (weights * shown).sum(dim=0)
        lse[:, :merged] = torch.where(no_keys, -torch.inf, logs.logsumexp(dim=0))
    return Attention(out, lse, torch.ones(num_tokens, dtype=torch.bool, device=out.device))


def stored_latents(
    kv_c: Tensor, k_pe: Tensor, cache_dtype: torch.dtype, kv_scale: float | None
) -> Tensor:
    """The rows that `write_kv` should store, before rounding to the cache's type: [T, D]
    float64.
    """
    rows = torch.cat((kv_c, k_pe), dim=-1).double()
    if cache_dtype != torch.float8_e4m3fn:
        return rows
    return (rows / (1.0 if kv_scale is None else kv_scale)).clamp(-E4M3_MAX, E4M3_MAX)


def quantize_fp8(x: Tensor, num_live: int, *, blocks: int = 0) -> Quantized:
    """Quantization of the first `num_live` rows of x [T, K], by one scale [1], or by `blocks`
    scales a row [T, G].
    """
    live = x[:num_live].double().reshape(num_live * blocks or 1, -1)
    amax = live.abs().amax(dim=1, keepdim=True)
    live_scale = torch.where(amax == 0, 1.0, amax / E4M3_MAX)
    scaled = torch.full(x.shape, _NAN, dtype=torch.float64, device=x.device)
    scaled[:num_live] = (live / live_scale).reshape(num_live, -1)
    scale = live_scale.reshape(1) if not blocks else scaled.new_full((x.shape[0], blocks), _NAN)
    if blocks:
        scale[:num_live] = live_scale.reshape(num_live, blocks)
    defined = torch.arange(x.shape[0], device=x.device) < num_live
    return Quantized(scaled, scale, defined)


def route_experts(logits: Tensor, num_experts_per_tok: int) -> Routed:
    """The k experts with the largest of logits [T, X], by ascending id, with softmax weights [T, k]
    that sum to 1.
    """
    scores = logits.double().softmax(dim=-1)
    ids = scores.topk(num_experts_per_tok, dim=-1).indices.sort(dim=-1).values
    weights = scores.gather(1, ids)
    return Routed(ids, weights / weights.sum(dim=-1, keepdim=True))


def align_experts(topk_ids: Tensor, *, num_experts: int, block_size: int) -> Aligned:
    """Choices of topk_ids [T, k] in ascending order in each expert's run, then T * k to the end of
    its last block.
    """
    choices, runs, experts = topk_ids.flatten().long(), list[Tensor](), list[int]()
    for expert in range(num_experts):
        mine = (choices == expert).nonzero().flatten()
        blocks = -(-len(mine) // block_size)
        runs.append(
            torch.cat([mine, mine.new_full((blocks * block_size - len(mine),), len(choices))])
        )
        experts += [expert] * blocks
    return Aligned(torch.cat(runs), torch.tensor(experts))


def quantize_blocks(
    x: Tensor,
    expert_offsets: Tensor,
    *,
    block_format: str,
    chosen: tuple[Tensor, Tensor] | None = None,
) -> Blocks:
    """Quantize each live row by itself, by search among all numbers of the format.

    Scales of no block are code 0.

    A number next to the middle of two others may be rounded to either: a product with the
    reciprocal of a scale does not decide as a division does. There the result is the kernel's
    choice, if `chosen`, its values [T, K] and scales [S, G], is one of the two. Scales that are
    powers of two divide exactly and leave no choice.
    """
    form = FORMATS[block_format]
    num_tokens, width = x.shape
    bounds = expert_offsets.tolist()
    counts = [end - start for start, end in pairwise(bounds)]
    values = torch.full((num_tokens, width), torch.nan, dtype=torch.float64)
    unused = 2.0**-127 if form.scale == "e8m0" else 0.0
    scales = torch.full((num_scale_rows(counts), width // form.block), unused, dtype=torch.float64)
    first = 0
    follows = chosen if form.scale == "e4m3" else None
    for start, count in zip(bounds, counts, strict=False):
        for row in range(count):
            blocks = x[start + row].double().view(-1, form.block)
            scale = _block_scale(
                blocks.abs().amax(dim=1), form, follows and follows[1][first + row]
            )
            scales[first + row] = scale
            values[start + row] = _block_elements(
                blocks, scale, form, follows and follows[0][start + row]
            ).flatten()
        first += -(-count // SCALE_TILE) * SCALE_TILE
    return Blocks(values, scales, torch.arange(num_tokens) < bounds[-1])


def _block_scale(amax: Tensor, form: BlockFormat, chosen: Tensor | None) -> Tensor:
    """The scale of blocks with these largest magnitudes [G]."""
    if form.scale == "e4m3":
        return _nearest(amax / form.element_max, magnitudes("e4m3"), chosen)
    exponent = torch.frexp(amax).exponent - 1 - form.exponent_max
    exponent = torch.where(amax == 0, -127, exponent).clamp(-127, 127)
    return torch.ldexp(torch.ones_like(amax), exponent)


def _block_elements(
    blocks: Tensor, scale: Tensor, form: BlockFormat, chosen: Tensor | None
) -> Tensor:
    scaled = torch.where(scale[:, None] == 0, 0.0, blocks / scale[:, None])
    sizes = None if chosen is None else chosen.view(blocks.shape).abs()
    return scaled.sign() * _nearest(scaled.abs(), magnitudes(form.element), sizes)


TIE_MARGIN = 2.0**-22
"""Two roundings of float32: numbers so near the middle of two others, relative to it, are a tie."""


def _nearest(sizes: Tensor, table: Tensor, chosen: Tensor | None = None) -> Tensor:
    """The entry of a rising `table` nearest to each size, at a tie the one of even code; the last
    entry at most.

    At a tie up to rounding it is `chosen`, if that is the other entry.
    """
    above = torch.searchsorted(table, sizes).clamp(max=len(table) - 1)
    below = (above - 1).clamp(min=0)
    to_above, to_below = table[above] - sizes, sizes - table[below]
    is_below = (to_below < to_above) | ((to_below == to_above) & (below % 2 == 0))
    if chosen is not None:
        is_tie = (to_above - to_below).abs() <= TIE_MARGIN * sizes
        is_below = torch.where(is_tie & (chosen == table[below]), True, is_below)
        is_below &= ~(is_tie & (chosen == table[above]))
    return torch.where(is_below, table[below], table[above])
