"""The expected result of each op, in float64, from live memory alone.

A reference gathers exactly the memory that its op may depend on. It repairs no value: a NaN in live
memory stays a NaN. Rows that an op leaves undefined are NaN, and `defined` is false for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from harness.core.ops import latent_rank

E4M3_MAX = 448.0
LEAST_LSE = 32.0  # Smaller log-sum-exps are rounded within every bound: by 2^-18 of a weight.
NAN = float("nan")


class WantedAttention(NamedTuple):
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
        [H] -> what out [H, R] and lse [H] may be off.

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
        # The errors of single products are independent, so their squares add; their sum would be
        # far too wide.
        moved = (query.square() @ keys.square().T).sqrt() * scale
        rounded = torch.maximum(
            weights * self.weight, weights.amax(1, keepdim=True) * self.least_weight
        )
        # exp overflows float64 past 709. A weight moves by 1 at most.
        square = (weights * moved.clamp(max=700).expm1()).clamp(max=1).square() + rounded.square()
        # The sum of square * (value - out)^2. Weights add up to 1, so one that is too large moves
        # the row from its mean towards that value.
        off = (
            square @ values.square()
            - 2 * (square @ values) * out
            + square.sum(1, keepdim=True) * out.square()
        )
        # The worst case for the lse: each score moved up by its error. The clamp keeps the
        # logarithm finite.
        tilted = (weights.clamp(min=1e-300).log() + moved).softmax(dim=1)
        return off.clamp(min=0).sqrt(), (tilted * moved).square().sum(1).sqrt()


def dequantized(stored: Tensor, kv_scale: float | None) -> Tensor:
    """Cache elements `stored` [...] of any dtype as float64 [...], times `kv_scale`."""
    return stored.float().double() * (1.0 if kv_scale is None else kv_scale)


def gather_latents(kv_cache: Tensor, block_row: Tensor, num_tokens: int) -> Tensor:
    """The first `num_tokens` slots of one request, no others.

    kv_cache [N, P, D] of any dtype, block_row [M] int32 -> [num_tokens, D] in the cache's type,
    such as bfloat16.
    """
    positions = torch.arange(num_tokens, device=kv_cache.device)
    page_size = kv_cache.shape[1]
    block = block_row.to(torch.int64)[positions // page_size]
    assert num_tokens == 0 or 0 <= int(block.min()) <= int(block.max()) < kv_cache.shape[0], (
        "a live page is no page"
    )
    # By two indices, because a flat view of padded pages is a copy.
    return kv_cache[block, positions % page_size]


def attended(
    q: Tensor, seen: Iterable[tuple[int, Tensor]], scale: float, rounding: Rounding
) -> WantedAttention:
    """Attention of tokens q [T, H, D]:

    `seen` has the number and the keys [n, D] float64 of a token. lse is [T, H].
    """
    rank = latent_rank(q.shape[-1])
    out = torch.full((*q.shape[:2], rank), NAN, dtype=torch.float64, device=q.device)
    # Rows without keys stay NaN: a check that reads one by mistake fails.
    lse = torch.full_like(out[..., 0], NAN)
    defined = torch.zeros(len(q), dtype=torch.bool, device=q.device)
    slack: tuple[Tensor, Tensor] | None = None
    for t, keys in seen:
        query = q[t].double()
        # In float64, so that the reference's own rounding is far below any bound.
        scores = query @ keys.T * scale
        weights = scores.softmax(dim=-1)
        out[t] = weights @ keys[:, :rank]
        lse[t] = scores.logsumexp(dim=-1)
        defined[t] = True
        if moved := rounding.slack(query, keys, scale, weights, out[t], lse[t]):
            slack = slack or (torch.zeros_like(out), torch.zeros_like(lse))
            slack[0][t], slack[1][t] = moved
    return WantedAttention(out, lse, defined, slack)


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
