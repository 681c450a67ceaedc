"""Sparse decode in torch: the chosen slots are gathered first."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_poison.allocations import only_writes

from harness.core.ops import latent_rank
from harness.core.seams import seam
from harness.kernels.checks import check_shapes
from harness.memory.bounds import check_indices
from harness.ops.mla_decode.kernels.tiled import pages_as_stored
from harness.ops.parts.record_views import ds_mla_rows


def mla_decode_sparse(
    q: Tensor,
    kv_cache: Tensor,
    indices: Tensor,
    *,
    scale: float,
    kv_scale: float | Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Gather a row of slots for each token and leave tokens without slots unwritten.

    q: [T, H, D], kv_cache: [N, P, D] float32, bfloat16 or float8_e4m3fn (times kv_scale), or
    records [N, P, 656] uint8 of `fp8_ds_mla`, indices: [T, K] int slots of the pool (page * P +
    offset), negative for none -> out [T, H, R] in q's dtype, lse [T, H] float32 (natural
    logarithm). Raises IllegalAddress for a slot past the pool. Reads no value on the host.

    kv_scale is a float, or [1] float32 on the device.
    """
    check_shapes(("q", q, "THD"), ("indices", indices, "TK"))
    num_tokens, num_heads, head_dim = q.shape
    rank = latent_rank(head_dim)
    cache_scale: float | Tensor = 1.0
    # A scale beside a cache of another type scales nothing (sgl-project/sglang#18396).
    if kv_cache.dtype == torch.float8_e4m3fn and kv_scale is not None:
        cache_scale = kv_scale
    out = torch.empty(num_tokens, num_heads, rank, dtype=q.dtype, device=q.device)
    lse = torch.empty(num_tokens, num_heads, dtype=torch.float32, device=q.device)
    _attend(q, kv_cache, indices, scale, cache_scale, out, lse)
    return out, lse


@only_writes
def _attend(
    q: Tensor,
    kv_cache: Tensor,
    indices: Tensor,
    scale: float,
    cache_scale: float | Tensor,
    out: Tensor,
    lse: Tensor,
) -> None:
    """Write out [T, H, R] and lse [T, H] of the tokens that have slots."""
    rank = out.shape[-1]
    chosen = indices >= 0
    keys = load_chosen(kv_cache, indices, chosen)
    scores = torch.bmm(q.float() * (scale * cache_scale), keys.transpose(1, 2))
    scores = scores.masked_fill(~chosen[:, None], float("-inf"))
    largest = scores.amax(dim=-1, keepdim=True)
    # A token without slots has only scores of -inf, and -inf - -inf would be NaN.
    weights = (scores - torch.where(largest.isinf(), 0.0, largest)).exp()
    total = weights.sum(dim=-1)
    # 0 / 0 for a token without slots. The select below drops the row.
    rows = torch.bmm(weights, keys[..., :rank]) * cache_scale / total[..., None]
    has_keys = chosen.any(dim=1)
    out.copy_(torch.where(has_keys[:, None, None], rows.to(out.dtype), out))
    lse.copy_(torch.where(has_keys[:, None], largest.squeeze(-1) + total.log(), lse))


@seam("sparse.invalid-index-clamped")
def load_chosen(kv_cache: Tensor, indices: Tensor, chosen: Tensor) -> Tensor:
    """The latents [T, K, D] float32 of the slots `indices` [T, K] int32; zeros where a slot is not
    `chosen` [T, K] bool.

    kv_cache [N, P, D] is float32, bfloat16 or float8_e4m3fn, or uint8 records. Raises
    IllegalAddress for a slot past the pool.

    No other slot, such as slot 0 of the null block, may be loaded in place of a missing one: the
    mask of the scores makes its weight 0, and 0 times NaN is NaN (vllm-project/vllm#57156).
    """
    page_size = kv_cache.shape[1]
    slots = check_indices(torch.where(chosen, indices, 0), kv_cache.shape[0] * page_size, "indices")
    return gather_slots(kv_cache, slots).masked_fill(~chosen[..., None], 0.0)


def gather_slots(kv_cache: Tensor, slots: Tensor) -> Tensor:
    """The latents [..., D] float32 of slots [...] int64 of kv_cache [N, P, D] of any strides,
    unscaled.

    The cache is float32, bfloat16 or float8_e4m3fn, or records [N, P, 656] uint8 of `fp8_ds_mla`.
    """
    block = slots // kv_cache.shape[1]
    offset = slots % kv_cache.shape[1]
    pages = pages_as_stored(kv_cache)
    if pages.dtype == torch.uint8:
        return ds_mla_rows(pages[block, offset])
    return pages[block, offset].float()
