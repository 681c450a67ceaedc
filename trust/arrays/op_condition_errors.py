"""Errors of the ops beside `mla_decode` under conditions: the right kernel runs, and the rows of
some units become wrong.

A unit has rows: of the outputs, or of the cache that a writer fills. A unit without a live row has
none, and stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from harness.core.ops import PAGE_SIZE
from harness.ops.parts.record_formats import places

Arguments = dict[str, Any]
Kernel = Callable[..., Any]
Rows = list[Tensor]
"""The views of one unit: parts of outputs or of a cache."""
HEADED = ("mla_decode", "mla_decode_sparse", "context_attention", "merge_attn_states")
"""Ops with heads: an error may be in the last head alone."""
WRITERS = ("write_kv", "write_records")


def _span(starts: Tensor, unit: int) -> slice:
    bounds = starts.tolist()
    return slice(bounds[unit], bounds[unit + 1])


def _sparse(a: Arguments, outputs: Any, t: int, heads: slice) -> Rows:
    out, lse = outputs
    return [out[t, heads], lse[t, heads]] if bool((a["indices"][t] >= 0).any()) else []


def _context(a: Arguments, outputs: Any, b: int, heads: slice) -> Rows:
    out, lse = outputs
    rows, keys = _span(a["query_start_loc"], b), _span(a["chunk_start_loc"], b)
    return [out[rows, heads], lse[heads, rows].T] if keys.stop > keys.start else []


def _merge(a: Arguments, outputs: Any, t: int, heads: slice) -> Rows:
    return [outputs[0][t, heads], outputs[1][heads, t]]


def _route(a: Arguments, outputs: Any, t: int, heads: slice) -> Rows:
    live = a.get("num_live")
    return [outputs[0][t], outputs[1][t]] if live is None or t < live else []


def _quantize(a: Arguments, outputs: Any, t: int, heads: slice) -> Rows:
    live = a.get("num_live")
    return [outputs[0][t]] if live is None or t < int(live) else []


def _blocks(a: Arguments, outputs: Any, t: int, heads: slice) -> Rows:
    return [outputs[0][t]]


def _align(a: Arguments, outputs: Any, expert: int, heads: slice) -> Rows:
    ids, experts, _ = outputs
    size = a["block_size"]
    counts = torch.bincount(a["topk_ids"].flatten().long(), minlength=a["num_experts"])
    ends = (-(-counts // size)).cumsum(0).tolist()
    first, last = ends[expert - 1] if expert else 0, ends[expert]
    return (
        [ids[first * size : first * size + int(counts[expert])], experts[first:last]]
        if last > first
        else []
    )


def _read(a: Arguments, outputs: Any, b: int, heads: slice) -> Rows:
    rows = _span(a["cu_seq_lens"], b)
    out = outputs[0] if isinstance(outputs, tuple) else outputs
    return [out[rows]] if rows.stop > rows.start else []


def _written(a: Arguments, outputs: Any, t: int, heads: slice) -> Rows:
    slot = int(a["slot_mapping"][t])
    return [a["kv_cache"][slot // PAGE_SIZE, slot % PAGE_SIZE]] if slot >= 0 else []


def _logits(a: Arguments, outputs: Any, b: int, heads: slice) -> Rows:
    num_tokens, length = a["q"].shape[1], int(a["seq_lens"][b])
    seen = [max(length - num_tokens + s + 1, 0) for s in range(num_tokens)]
    return [outputs[0][b * num_tokens + s, :n] for s, n in enumerate(seen) if n]


def _topk(a: Arguments, outputs: Any, b: int, heads: slice) -> Rows:
    num_tokens = len(outputs[0]) // len(a["seq_lens"])
    return list(outputs[0][b * num_tokens : (b + 1) * num_tokens])[::-1]


ROWS: dict[str, Callable[[Arguments, Any, int, slice], Rows]] = {
    "mla_decode_sparse": _sparse,
    "context_attention": _context,
    "merge_attn_states": _merge,
    "route_experts": _route,
    "align_experts": _align,
    "quantize_fp8": _quantize,
    "quantize_blocks": _blocks,
    "write_kv": _written,
    "read_records": _read,
    "index_logits": _logits,
    "select_topk": _topk,
    "map_indices": _blocks,
}
"""Op -> the rows of a unit.

Records of a writer are bytes at places of their block: see :func:`_records`.
"""


def _records(a: Arguments, t: int) -> tuple[Tensor, Tensor] | None:
    """The block of a token's record as bytes [n], and the places [bytes of a record] of the
    record.
    """
    slot = int(a["slot_mapping"][t])
    block = a["cache"][slot // PAGE_SIZE].view(-1)
    return (block, places(a["record_format"], PAGE_SIZE)[slot % PAGE_SIZE]) if slot >= 0 else None


def stale(rows: Rows, before: Rows, neighbour: Rows) -> Rows:
    """The rows hold what they held before: for outputs zeros."""
    return before


def foreign(rows: Rows, before: Rows, neighbour: Rows) -> Rows:
    """The rows are the neighbour's, as far as it has some."""
    found = [row.clone() for row in rows]
    for row, other in zip(found, neighbour, strict=False):
        if row.ndim == other.ndim and row.shape[1:] == other.shape[1:]:
            count = min(len(row), len(other))
            row[:count] = other[:count]
    return found


def swapped(rows: Rows, before: Rows, neighbour: Rows) -> Rows:
    """The first and the last element of the last row are exchanged, in the first part that has
    two.
    """
    found = [row.clone() for row in rows]
    for row in found:
        last = row[-1] if row.ndim > 1 and row.shape[-1] > 1 else row
        if last.shape[-1] > 1:
            ends = (
                last[..., [0, -1]].clone()
                if last.element_size() > 1
                else last.view(torch.uint8)[..., [0, -1]]
            )
            target = last if last.element_size() > 1 else last.view(torch.uint8)
            target[..., [-1, 0]] = ends
            break
    return found


def scaled(rows: Rows, before: Rows, neighbour: Rows) -> Rows:
    """The first part is multiplied as if by the scale of a neighbour with elements half as
    large.
    """
    first = rows[0]
    return [(first.float() * 0.5).to(first.dtype), *rows[1:]]


def doubled(rows: Rows, before: Rows, neighbour: Rows) -> Rows:
    """The first element is there twice: in place of the second too."""
    found = [row.clone() for row in rows]
    flat = found[0].view(torch.uint8) if found[0].element_size() == 1 else found[0]
    if flat.shape[-1] > 1:
        flat[..., 1] = flat[..., 0]
    return found


Error = Callable[[Rows, Rows, Rows], Rows]
EVERY: dict[str, Error] = {
    "a stale row": stale,
    "another's row": foreign,
    "two elements swapped": swapped,
    "an element twice": doubled,
}
ERRORS: dict[str, dict[str, Error]] = {op: dict(EVERY) for op in (*ROWS, "write_records")}
"""Op -> kind -> the error."""
SCALED = (
    "mla_decode_sparse",
    "context_attention",
    "merge_attn_states",
    "quantize_fp8",
    "write_kv",
    "read_records",
)
for _op in (*SCALED, "index_logits"):
    ERRORS[_op]["the neighbour's scale"] = scaled
# An expert's choices may be listed in any order, and so may the positions of a top-k.
for _op in ("align_experts", "select_topk"):
    del ERRORS[_op]["two elements swapped"]


def with_error(
    op: str,
    kernel: Kernel,
    arguments: Arguments,
    units: Sequence[int],
    error: Error,
    last_head: bool,
) -> Any:
    """The outputs of a kernel that is wrong in `units`. A writer's cache is changed in place."""
    heads = slice(-1, None) if last_head else slice(None)
    if op == "write_records":
        return _with_wrong_records(kernel, arguments, units, error)
    kept = (
        [[part.clone() for part in ROWS[op](arguments, None, u, heads)] for u in units]
        if op in WRITERS
        else []
    )
    outputs = kernel(**arguments)
    if outputs is not None and not isinstance(outputs, tuple | list):
        outputs = (outputs,)
    rows = [ROWS[op](arguments, outputs, unit, heads) for unit in units]
    beside = [ROWS[op](arguments, outputs, unit - 1, heads) if unit else [] for unit in units]
    wrong = []
    for place, own in enumerate(rows):
        before = kept[place] if kept else [torch.zeros_like(part) for part in own]
        wrong.append(error(own, before, [part.clone() for part in beside[place]]) if own else [])
    for own, changed in zip(rows, wrong, strict=True):
        for part, other in zip(own, changed, strict=True):
            part.copy_(other)
    return outputs[0] if outputs is not None and len(outputs) == 1 else outputs


def _with_wrong_records(
    kernel: Kernel, arguments: Arguments, units: Sequence[int], error: Error
) -> Any:
    where = [_records(arguments, unit) for unit in units]
    kept = [None if one is None else one[0][one[1]].clone() for one in where]
    outputs = kernel(**arguments)
    beside = [_records(arguments, unit - 1) if unit else None for unit in units]
    wrong = [
        None
        if one is None
        else error(
            [one[0][one[1]]], [before], [] if other is None else [other[0][other[1]].clone()]
        )[0]
        for one, before, other in zip(where, kept, beside, strict=True)
    ]
    for one, changed in zip(where, wrong, strict=True):
        if one is not None:
            one[0][one[1]] = changed
    return outputs
