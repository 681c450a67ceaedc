"""Stores new latents in the paged cache."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_poison.allocations import only_writes

from harness.core.seams import seam
from harness.kernels.checks import check_range, check_shapes
from harness.ops.parts.slots import stored_slots

_E4M3_MAX = 448.0


@only_writes
def write_kv(
    kv_c: Tensor,
    k_pe: Tensor,
    kv_cache: Tensor,
    slot_mapping: Tensor,
    *,
    kv_scale: float | Tensor | None = None,
) -> None:
    """Write row t of `kv_c` followed by `k_pe` into slot slot_mapping[t] of the cache; negative
    slots are skipped.

    kv_c: [T, R], k_pe: [T, E], kv_cache: [N, P, R + E] of any strides, slot_mapping: [T] int. An
    fp8 cache holds value / kv_scale, saturated at 448. Raises IllegalAddress for a slot at or past
    N * P.

    kv_scale is a float, or [1] float32 on the device.
    """
    check_shapes(("kv_c", kv_c, "TR"), ("k_pe", k_pe, "TE"))
    check_range("tokens of slot_mapping", len(slot_mapping), 0, len(kv_c))
    page_size = kv_cache.shape[1]
    kv_cache = pages_to_write(kv_cache)
    kept, slots = stored_slots(slot_mapping, kv_cache.shape[0] * page_size)
    block = slots // page_size
    offset = slots % page_size
    rows = torch.cat((kv_c[kept], k_pe[kept]), dim=-1)
    if kv_cache.dtype == torch.float8_e4m3fn:
        scaled = rows.float() / (1.0 if kv_scale is None else kv_scale)
        # torch's conversion gives NaN past 448, where a GPU's instruction saturates.
        stored = scaled.clamp(-_E4M3_MAX, _E4M3_MAX).to(torch.float8_e4m3fn)
        # As bytes, because older torch cannot index fp8.
        kv_cache.view(torch.uint8)[block, offset] = stored.view(torch.uint8)
    else:
        kv_cache[block, offset] = rows.to(kv_cache.dtype)


@seam("layout.packed-pages-written", "layout.stored-in-one-branch")
def pages_to_write(kv_cache: Tensor) -> Tensor:
    """kv_cache [N, P, D] float32, bfloat16 or float8_e4m3fn of any layout
    (HYGON-AI/sglang-das#317), with the stride of its pages (ROCm/aiter#3492).
    """
    return kv_cache
