"""Corrupts one argument of a call, as a row of the op's `corruptions.yaml` says.

The inputs of the reference get the same change, but for what changes no value: then a right result
is defined.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from harness.core.corruptions import Corruption
from harness.core.ops import PAGE_SIZE
from harness.ops.parts.inputs import OpInputs

InputsT = TypeVar("InputsT", bound=OpInputs)
FAR_BELOW = -52_000.0
"""A score below -5e4, the mask of some kernels (flashinfer-ai/flashinfer#4401)."""


def corrupted(given: InputsT, corruption: Corruption) -> InputsT:
    """`given` with the argument of `corruption` changed, other memory shared."""
    changed: InputsT = _CHANGES[corruption.change](given, corruption)
    return changed


def as_meant(kept: InputsT, corruption: Corruption) -> InputsT:
    """The inputs of the reference for a corrupted call:

    `kept`, with the values that the corrupted ones stand for.
    """
    argument = getattr(kept, corruption.argument, None)
    is_integer = isinstance(argument, Tensor) and not argument.is_floating_point()
    if (
        not corruption.right
        or corruption.change in _SAME_VALUES
        # Integers of another type are the same numbers. Floats are rounded, in the reference too.
        or (corruption.change == "dtype" and is_integer)
    ):
        return kept
    return corrupted(
        kept,
        replace(corruption, to=corruption.to if corruption.means is None else corruption.means),
    )


def planned_lengths(seq_lens: Tensor, corruption: Corruption | None) -> Tensor:
    """The lengths [B] int32 that the plan is made for: seq_lens [B] int32, unless the plan is what
    is corrupted.

    A plan of `fewer` requests has [B - 1].
    """
    # A plan for other lengths is what a graph holds that was captured in an earlier step.
    if corruption is None or corruption.change != "plan":
        return seq_lens
    return seq_lens[:-1] if corruption.to == "fewer" else seq_lens.clamp(max=1)


def number(given: Any, to: Any) -> Any:
    """What `to` stands for: the first `blocks`, `slots` or `columns` (of slots) that a call does
    not have.
    """
    if to == "columns":
        return given.block_table.shape[1] * PAGE_SIZE + 1
    if to in ("blocks", "slots"):
        cache = given.kv_cache if hasattr(given, "kv_cache") else given.cache
        return cache.shape[0] * (cache.shape[1] if to == "slots" else 1)
    return to


def _of_tensor(change: Callable[[Tensor, Any], Tensor]) -> Callable[[Any, Corruption], Any]:
    """A change of one tensor by the number that `to` stands for."""

    def apply(given: Any, corruption: Corruption) -> Any:
        tensor = getattr(given, corruption.argument)
        return replace(given, **{corruption.argument: change(tensor, number(given, corruption.to))})

    return apply


def _element(tensor: Tensor, to: Any) -> Tensor:
    """The first entry of a tensor [n, ...] that is `to`; of offsets the second, as the first is
    0.
    """
    changed = tensor.clone()
    is_offsets = tensor.ndim == 1 and len(tensor) > 1 and int(tensor[0]) == 0
    changed[(int(is_offsets), *(0,) * (tensor.ndim - 1))] = to
    return changed


def _last(tensor: Tensor, to: Any) -> Tensor:
    changed = tensor.clone()
    changed[-1] = to
    return changed


def _swapped(tensor: Tensor, to: Any) -> Tensor:
    """Offsets [n] that fall once: the second is larger than the third."""
    changed = tensor.clone()
    # The first and the last stay, so that the sum of all lengths is still right.
    changed[1] = tensor[2] + 1
    changed[2] = tensor[1]
    return changed


def _repeated(tensor: Tensor, to: Any) -> Tensor:
    """Rows [n, m] that begin with the first entry of row 1, twice."""
    changed = tensor.clone()
    # One block in two tables and twice in one: what a kernel writes for one request, the other
    # reads.
    changed[:2, :2] = tensor[1, 0]
    return changed


def _strided(tensor: Tensor, to: Any) -> Tensor:
    """The same values, every second element of a wider tensor."""
    # A kernel that takes it for dense reads every second value from the gaps, and these are zeros.
    wide = torch.zeros(*tensor.shape, 2, dtype=tensor.dtype, device=tensor.device)
    wide[..., 0] = tensor
    return wide[..., 0]


def _heads(q: Tensor, to: Any) -> Tensor:
    """Queries [..., H, D] of as many heads as `to` says, those of the call again and again."""
    # Rows of equal heads must be equal, so the reference needs no inputs of its own.
    return q[..., torch.arange(int(to)) % q.shape[-2], :].contiguous()


def _pages(given: Any, corruption: Corruption) -> Any:
    """The same slots [N, P, D] in pages of another size, with a table, if there is one, of more
    columns.
    """
    cache = given.kv_cache
    size = int(corruption.to or 0)
    changed = replace(given, kv_cache=cache.contiguous().view(-1, size, cache.shape[2]))
    if hasattr(given, "block_table"):
        # A page of 64 slots becomes pages b * k .. b * k + k - 1, in that order.
        parts = torch.arange(PAGE_SIZE // size, device=cache.device, dtype=torch.int32)
        changed.block_table = (given.block_table[..., None] * len(parts) + parts).flatten(1)
    return changed


def _scores(given: Any, corruption: Corruption) -> Any:
    """Keys and queries [..., D] with equal scores, all by their last element, which is no part of a
    value.
    """
    keys = getattr(given, corruption.argument).clone()
    q = torch.zeros_like(given.q)
    # A single element makes the score, so it does not depend on the order in which a kernel adds.
    keys[..., -1] = FAR_BELOW / (1024.0 * given.scale)
    q[..., -1] = 1024.0
    return replace(given, **{corruption.argument: keys, "q": q})


def _scale_beside_floats(given: Any, corruption: Corruption) -> Any:
    """A scale beside a cache that is not scaled, as engines give it to every kernel."""
    is_scaled = given.kv_cache.dtype == torch.float8_e4m3fn
    return given if is_scaled else replace(given, kv_scale=corruption.to)


def _in_place(given: Any, corruption: Corruption) -> Any:
    """The positions [T, K] in the buffer of the output, which begins with them."""
    given.buffer[: len(given.positions)] = given.positions
    return replace(given, positions=given.buffer[: len(given.positions)])


_CHANGES: dict[str, Callable[[Any, Corruption], Any]] = {
    "element": _of_tensor(_element),
    "last": _of_tensor(_last),
    "filled": _of_tensor(lambda tensor, to: torch.full_like(tensor, to)),
    "added": _of_tensor(lambda tensor, to: tensor + to),
    "swapped": _of_tensor(_swapped),
    "repeated": _of_tensor(_repeated),
    "fewer": _of_tensor(lambda tensor, to: tensor[: -1 if to is None else to]),
    "narrow": _of_tensor(lambda tensor, to: tensor[..., :-1].contiguous()),
    "dtype": _of_tensor(lambda tensor, to: tensor.to(getattr(torch, to))),
    "strided": _of_tensor(_strided),
    "heads": _of_tensor(_heads),
    "pages": _pages,
    "scores": _scores,
    "keyword": lambda given, corruption: replace(given, **{corruption.argument: corruption.to}),
    "same": lambda given, corruption: replace(
        given, **{corruption.argument: getattr(given, str(corruption.to))}
    ),
    "in_place": _in_place,
    "plan": lambda given, corruption: given,
    "scale_beside_floats": _scale_beside_floats,
}
_SAME_VALUES = ("pages", "in_place", "plan", "strided", "scale_beside_floats")
