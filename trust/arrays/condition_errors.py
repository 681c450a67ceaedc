"""Errors that a right kernel gets under conditions: what real kernels do wrong with some requests,
rows or keys.

Each function calls the right kernel on changed inputs and returns its outputs. The caller takes the
rows of the wrong units only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from harness.core.ops import PAGE_SIZE

Arguments = dict[str, Any]
Kernel = Callable[..., Any]
Error = Callable[[Kernel, Arguments, Sequence[int], dict[Any, Any]], Any]


def _rows(good: Any, wrong: Any, units: Sequence[int], last_head: bool) -> tuple[Tensor, Tensor]:
    """out [B, S, H, R] and lse [B, H, S] of `good`, with the rows of `units` from `wrong`."""
    (out, lse), (wrong_out, wrong_lse) = good, wrong
    heads = slice(-1, None) if last_head else slice(None)
    for b in units:
        out[b, :, heads] = wrong_out[b, :, heads]
        lse[b, heads] = wrong_lse[b, heads]
    return out, lse


def _slot(arguments: Arguments, b: int, position: int) -> tuple[int, int]:
    """The page and the slot of a key of request b."""
    return int(arguments["block_table"][b, position // PAGE_SIZE]), position % PAGE_SIZE


def swapped(
    kernel: Kernel, arguments: Arguments, units: Sequence[int], kept: dict[Any, Any]
) -> Any:
    """The first halves of two keys are exchanged: the last, and the one in the middle."""
    cache = arguments["kv_cache"].clone()
    half = cache.shape[-1] // 2
    for b in units:
        if (length := int(arguments["seq_lens"][b])) > 1:
            one, other = _slot(arguments, b, length - 1), _slot(arguments, b, length // 2 - 1)
            mine = cache[one][:half].clone()
            cache[one][:half] = cache[other][:half]
            cache[other][:half] = mine
    return kernel(**arguments | {"kv_cache": cache})


def twice(kernel: Kernel, arguments: Arguments, units: Sequence[int], kept: dict[Any, Any]) -> Any:
    """The key before the last is read in place of the last."""
    cache = arguments["kv_cache"].clone()
    for b in units:
        if (length := int(arguments["seq_lens"][b])) > 1:
            cache[_slot(arguments, b, length - 1)] = cache[_slot(arguments, b, length - 2)].clone()
    return kernel(**arguments | {"kv_cache": cache})


def scaled(kernel: Kernel, arguments: Arguments, units: Sequence[int], kept: dict[Any, Any]) -> Any:
    """The query has the length of the neighbour's."""
    q = arguments["q"].clone()
    for b in units:
        own, other = (float(arguments["q"][n].float().norm()) for n in (b, b - 1))
        q[b] *= other / own if own else 1.0
    return kernel(**arguments | {"q": q})


def stale(kernel: Kernel, arguments: Arguments, units: Sequence[int], kept: dict[Any, Any]) -> Any:
    """The row of the last query token holds what it held after the call before, or zeros."""
    out, lse = kernel(**arguments)
    before = kept.get("outputs")
    kept["outputs"] = out.clone(), lse.clone()
    if before is None or before[0].shape != out.shape:
        before = torch.zeros_like(out), torch.zeros_like(lse)
    out[:, -1], lse[..., -1] = before[0][:, -1], before[1][..., -1]
    return out, lse


def foreign(
    kernel: Kernel, arguments: Arguments, units: Sequence[int], kept: dict[Any, Any]
) -> Any:
    """The last page is that of the request before, or block 0."""
    table = arguments["block_table"].clone()
    for b in units:
        if (length := int(arguments["seq_lens"][b])) > 0:
            before = int(arguments["seq_lens"][b - 1]) if len(table) > 1 else 0
            page = arguments["block_table"][b - 1, (before - 1) // PAGE_SIZE] if before else 0
            table[b, (length - 1) // PAGE_SIZE] = page
    return kernel(**arguments | {"block_table": table})


ERRORS: dict[str, dict[str, Error]] = {
    "mla_decode": {
        "two keys swapped": swapped,
        "a key twice": twice,
        "the neighbour's scale": scaled,
        "a stale row": stale,
        "another's block": foreign,
    },
}
"""Op -> kind -> the error."""


def with_error(
    kernel: Kernel,
    arguments: Arguments,
    units: Sequence[int],
    error: Error,
    last_head: bool,
    kept: Any,
) -> Any:
    """The outputs of a kernel that is wrong in `units`: in all heads or in the last."""
    good = kernel(**arguments)
    return _rows(good, error(kernel, arguments, units, kept), units, last_head)
