"""One pass over a tensor, on any device: its verbatim sentinels, and other values that are not
finite.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from torch_poison.patterns import (
    EXPONENT,
    OUT_OF_RANGE,
    UNTAGGED,
    bits_view,
    mantissa_bits,
    narrower_nans,
    quiet_bits,
    site_of_bits,
)

Index = tuple[int, ...]


@dataclass(slots=True)
class Hits:
    """How many elements showed one thing, in which rows (dim 0), and the index of the first."""

    count: int
    rows: tuple[int, ...]
    first: Index


@dataclass(slots=True)
class Scan:
    """The values of one tensor that are no ordinary ones.

    `sentinels` is keyed by site; UNTAGGED is the all-ones pattern or an impossible index.
    """

    looked_at: int
    sentinels: dict[str, Hits] = field(default_factory=dict)
    canonical_nan: Hits | None = None
    other_nan: Hits | None = None
    inf: Hits | None = None


def scan(tensor: Tensor, judged: Tensor | None = None) -> Scan:
    """Scan `tensor` [...] where the mask `judged` [...] bool is set; None is everywhere.

    `judged` has the shape of the tensor or of its first dimensions, so one bool can stand for a
    row.
    """
    mask = _full_mask(tensor, judged)
    found = Scan(looked_at=int(mask.sum()))
    # Almost every tensor is clean. One kernel and one read of 4 bytes say so; `nonzero` below would
    # sync and allocate.
    if tensor.is_cuda and _is_clean(tensor):
        return found
    suspects = (suspicious(tensor) & mask).nonzero()
    if len(suspects) == 0:
        return found
    bits = bits_view(tensor)[tuple(suspects.unbind(1))]
    for value in torch.unique(bits).tolist():
        _note(found, tensor.dtype, int(value), suspects[bits == value])
    return found


def _is_clean(tensor: Tensor) -> bool:
    """Whether one pass finds nothing; False for what that pass cannot read."""
    if (
        tensor.dtype not in (torch.bfloat16, torch.float16, torch.float32)
        or not tensor.is_contiguous()
    ):
        return False
    from torch_poison.cuda_kernels import any_not_finite

    return not bool(any_not_finite(bits_view(tensor).flatten(), EXPONENT[tensor.dtype]))


def suspicious(tensor: Tensor) -> Tensor:
    """A bool mask of the elements of `tensor` [...] that are no ordinary value: NaN, Inf, or an
    index of a poison.
    """
    if tensor.dtype.is_floating_point:
        return ~torch.isfinite(tensor.float() if tensor.element_size() == 1 else tensor)
    if tensor.dtype == torch.bool:
        return bits_view(tensor) == 0xFF
    if tensor.dtype == torch.uint8:
        return tensor == 0xFF
    # A 64-bit element holds the index in both halves.
    index = OUT_OF_RANGE | OUT_OF_RANGE << 32 if tensor.dtype == torch.int64 else OUT_OF_RANGE
    return (tensor == -1) | (tensor == index)


def origin_of_bits(dtype: torch.dtype, bits: int) -> str | None:
    """The site of the sentinel that the NaN `bits` was copied or computed from; None if its payload
    has no site.

    x86 keeps a NaN operand's payload in float32 arithmetic and in widening casts; a negation flips
    the sign.
    """
    if quiet_bits(dtype) is None:
        return None
    magnitude = bits & ((1 << (8 * dtype.itemsize - 1)) - 1)
    candidates = [(dtype, magnitude), *narrower_nans(dtype, magnitude)]
    return next(
        (site for kind, nan in candidates if (site := site_of_bits(kind, nan)) is not None), None
    )


def origins(tensor: Tensor, where: Tensor) -> dict[str | None, Tensor]:
    """Split the elements of `tensor` [...] under the mask `where` [...] bool by their origin.

    Returns site -> indices int64 [n, tensor.ndim]; the key None has values whose payload names no
    site.
    """
    indices = where.nonzero()
    bits = bits_view(tensor)[tuple(indices.unbind(1))]
    found: dict[str | None, list[Tensor]] = {}
    for value in torch.unique(bits).tolist():
        found.setdefault(origin_of_bits(tensor.dtype, int(value)), []).append(
            indices[bits == value]
        )
    return {site: torch.cat(parts) for site, parts in found.items()}


def hits(indices: Tensor) -> Hits:
    """Sum up `indices` [n, ndim] int64, in any order."""
    rows = tuple(sorted(set(indices[:, 0].tolist())))
    first: Index = min(
        tuple(int(i) for i in index) for index in indices[indices[:, 0] == rows[0]].tolist()
    )
    return Hits(len(indices), rows, first)


def _full_mask(tensor: Tensor, judged: Tensor | None) -> Tensor:
    if judged is None:
        return torch.ones(tensor.shape, dtype=torch.bool, device=tensor.device)
    return judged.reshape(judged.shape + (1,) * (tensor.ndim - judged.ndim)).expand(tensor.shape)


def _note(found: Scan, dtype: torch.dtype, bits: int, indices: Tensor) -> None:
    """File the elements that hold `bits` under what they are."""
    here = hits(indices)
    site = site_of_bits(dtype, bits) if dtype.is_floating_point else UNTAGGED
    if site is not None:
        found.sentinels[site] = _joined(found.sentinels.get(site), here)
        return
    mantissa = mantissa_bits(dtype)
    payload = bits & mantissa
    # Arithmetic makes a NaN with the highest bit of the mantissa on x86, and with all bits on
    # NVIDIA GPUs.
    if quiet_bits(dtype) is not None and payload in ((mantissa + 1) >> 1, mantissa):
        found.canonical_nan = _joined(found.canonical_nan, here)
    elif not payload:
        found.inf = _joined(found.inf, here)
    else:
        found.other_nan = _joined(found.other_nan, here)


def _joined(known: Hits | None, new: Hits) -> Hits:
    if known is None:
        return new
    rows = tuple(sorted({*known.rows, *new.rows}))
    return Hits(known.count + new.count, rows, min(known.first, new.first))
