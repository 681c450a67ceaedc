"""`write_kv` in Triton: new latents into their slots of the paged cache, negative slots skipped."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from harness.kernels.checks import check_dense, check_range, check_shapes
from harness.memory.bounds import check_indices
from harness.memory.triton_interpreter import prepare

INTERPRETED = prepare()


@triton.jit
def _stored(values, scale, dtype: tl.constexpr):
    if dtype == tl.float8e4nv:
        # Selects saturate and keep a NaN.
        scaled = tl.div_rn(values.to(tl.float32), tl.zeros(values.shape, tl.float32) + scale)
        scaled = tl.where(scaled > 448.0, 448.0, scaled)
        return tl.where(scaled < -448.0, -448.0, scaled).to(dtype)
    return values.to(dtype)


@triton.jit(do_not_specialize=["num_tokens", "page_size"])
def _write(
    kv_c, k_pe, kv_cache, slot_mapping, kv_scale, constant_scale, num_tokens, page_size,
    stride_c, stride_e, stride_page, stride_slot,
    R: tl.constexpr, E: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_E: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64) * BLOCK_TOKENS + tl.arange(0, BLOCK_TOKENS)
    slot = tl.load(slot_mapping + token, mask=token < num_tokens, other=-1).to(tl.int64)
    kept = (slot >= 0)[:, None]
    scale = constant_scale
    if kv_scale is not None:
        scale = scale * tl.load(kv_scale)
    target = (
        kv_cache + ((slot // page_size) * stride_page + (slot % page_size) * stride_slot)[:, None]
    )
    columns = tl.arange(0, BLOCK_R)[None, :]
    c = tl.load(kv_c + token[:, None] * stride_c + columns, mask=kept & (columns < R), other=0.0)
    tl.store(
        target + columns, _stored(c, scale, kv_cache.dtype.element_ty), mask=kept & (columns < R)
    )
    columns = tl.arange(0, BLOCK_E)[None, :]
    e = tl.load(k_pe + token[:, None] * stride_e + columns, mask=kept & (columns < E), other=0.0)
    tl.store(
        target + R + columns,
        _stored(e, scale, kv_cache.dtype.element_ty),
        mask=kept & (columns < E),
    )


def write_kv(
    kv_c: Tensor,
    k_pe: Tensor,
    kv_cache: Tensor,
    slot_mapping: Tensor,
    *,
    kv_scale: float | Tensor | None = None,
) -> None:
    """As :func:`harness.ops.write_kv.kernels.by_slot.write_kv`; the last dimension of each must be
    dense.

    kv_c [T, R] and k_pe [T, E] bfloat16 or float32, kv_cache [N, P, R + E] float32, bfloat16 or
    float8_e4m3fn, slot_mapping [T] int64, page * P + place or negative. kv_scale is a float, or [1]
    float32. Raises ValueError for a dimension that is not dense.
    """
    check_shapes(("kv_c", kv_c, "TR"), ("k_pe", k_pe, "TE"))
    check_range("tokens of slot_mapping", len(slot_mapping), 0, len(kv_c))
    num_tokens = len(slot_mapping)
    rank = kv_c.shape[1]
    rope_dim = k_pe.shape[1]
    for name, tensor in (("kv_c", kv_c), ("k_pe", k_pe), ("kv_cache", kv_cache)):
        check_dense(name, tensor)
    check_dense("slot_mapping", slot_mapping, is_index=True)
    if INTERPRETED:
        # A GPU would fault; the interpreter would overwrite the host's memory unseen.
        check_indices(
            slot_mapping[slot_mapping >= 0], kv_cache.shape[0] * kv_cache.shape[1], "slot_mapping"
        )
    # A program costs the interpreter time; a GPU hides a token's latency behind many programs.
    tokens = 16 if INTERPRETED else 1
    if num_tokens:
        _write[(triton.cdiv(num_tokens, tokens),)](
            kv_c,
            k_pe,
            kv_cache,
            slot_mapping,
            kv_scale if isinstance(kv_scale, torch.Tensor) else None,
            float(kv_scale) if isinstance(kv_scale, int | float) else 1.0,
            num_tokens,
            kv_cache.shape[1],
            kv_c.stride(0),
            k_pe.stride(0),
            kv_cache.stride(0),
            kv_cache.stride(1),
            R=rank,
            E=rope_dim,
            BLOCK_R=triton.next_power_of_2(rank),
            BLOCK_E=triton.next_power_of_2(rope_dim),
            BLOCK_TOKENS=tokens,
            num_warps=4,
        )
