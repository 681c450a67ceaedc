"""Writing records in torch."""

from __future__ import annotations

from torch import Tensor

from harness.kernels.checks import check_range
from harness.ops.parts.record_formats import RECORDS
from harness.ops.parts.record_views import encoded, record_views
from harness.ops.parts.slots import stored_slots


def write_records(
    x: Tensor,
    cache: Tensor,
    slot_mapping: Tensor,
    *,
    record_format: str,
    scale: float | None = None,
) -> None:
    """Store row t of x [T, W] in slot slot_mapping[t] of the cache [N, P, bytes] uint8; negative
    slots are skipped.

    `scale` divides the values of formats with a scale of the whole cache. Raises IllegalAddress for
    a slot past the cache.
    """
    if record_format not in RECORDS:
        raise ValueError(f"record_format={record_format!r} is unknown; known: {', '.join(RECORDS)}")
    check_range(
        "width of x", x.shape[1], RECORDS[record_format].width, RECORDS[record_format].width
    )
    check_range("tokens of slot_mapping", len(slot_mapping), 0, len(x))
    page_size = cache.shape[1]
    kept, slots = stored_slots(slot_mapping, cache.shape[0] * page_size)
    block = slots // page_size
    offset = slots % page_size
    for part, view in zip(
        encoded(x[kept].float(), record_format, scale),
        record_views(cache, record_format),
        strict=True,
    ):
        tile = view.shape[2]
        view[block, offset // tile, offset % tile] = part.view(len(kept), *view.shape[3:])
