"""Faults of merges of partial attentions: empty sides, units of an lse, strides, and the order of a batch."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.engine.schedule.scheduler import ScheduledSequence


def minus_inf_only(lse: Tensor) -> Tensor:
    """Take -inf alone for an empty side, where the backend writes +inf (PR 15492)."""
    return lse == float("-inf")


def unguarded_shift(maximum: Tensor) -> Tensor:
    """Take the larger lse from both, -inf too where both sides are empty (PR 27491)."""
    return maximum


def weigh_all(
    blend: Tensor, prefix_out: Tensor, suffix_out: Tensor, prefix_empty: Tensor, suffix_empty: Tensor
) -> Tensor:
    """Rely on the weight 0 of an empty side: its output is unwritten memory (flashinfer-ai/flashinfer#4975)."""
    return blend


def suffix_by_prefix_strides(prefix_out: Tensor, suffix_out: Tensor) -> Tensor:
    """Read the suffix at the offsets of the prefix."""
    return torch.as_strided(suffix_out, suffix_out.shape, prefix_out.stride())


def lse_left_stale(lse: Tensor, rows: slice, value: float) -> None:
    """Write no lse for rows without keys, so that it is what memory held (sgl-project/sglang#22688)."""


def lse_of_base_2(lse_base_2: Tensor) -> Tensor:
    """Hand a base-2 lse to a merge that takes natural ones (PR 52796)."""
    return lse_base_2


def reshaped_lse(lse_by_token: Tensor) -> Tensor:
    """Read [T, H] as [H, T] without transposing (PR 26397)."""
    return lse_by_token.reshape(lse_by_token.shape[1], lse_by_token.shape[0])


def zero_lse(out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Let a rank without keys add an lse of 0, as zeroed memory holds it (PR 38416)."""
    return torch.zeros_like(out), torch.zeros_like(lse)


def latents_from_the_front(q: Tensor, kv_c: Tensor, k_pe: Tensor, first: int) -> tuple[Tensor, Tensor, Tensor]:
    """Take the first latents of the batch for prompts: they belong to decodes (PR 14253)."""
    count = len(q) - first
    return q[first:], kv_c[:count], k_pe[:count]


def fewest_tokens_first(prompts: list[ScheduledSequence]) -> list[ScheduledSequence]:
    """Order prompts by their new tokens alone. The merge counts prompts with context, and needs them first.

    PR 47381 repaired this order for decodes; the count is that of #36540.
    """
    return sorted(prompts, key=lambda item: item.num_new_tokens)


def merge_all_tokens(
    prefix_out: Tensor,
    prefix_lse: Tensor,
    suffix_out: Tensor,
    suffix_lse: Tensor,
    *,
    num_tokens_with_context: int | None = None,
) -> tuple[Tensor, Tensor]:
    """The merge before PR 36540: without the count, it weighs unwritten prefix rows too.

    An empty side has weight 0, but 0 times an unwritten NaN is NaN; an unwritten lse makes a weight of any size.
    Shapes as in :func:`harness.kernels.torch.merge.merge_attn_states`.
    """
    minus_inf = float("-inf")
    prefix_lse = prefix_lse.masked_fill(prefix_lse == float("inf"), minus_inf)
    suffix_lse = suffix_lse.masked_fill(suffix_lse == float("inf"), minus_inf)
    maximum = torch.maximum(prefix_lse, suffix_lse)
    prefix_sum, suffix_sum = (prefix_lse - maximum).exp(), (suffix_lse - maximum).exp()
    total = prefix_sum + suffix_sum
    prefix_weight, suffix_weight = ((side / total).transpose(0, 1)[..., None] for side in (prefix_sum, suffix_sum))
    out = torch.empty_like(prefix_out)
    lse = torch.empty_like(prefix_lse)
    out.copy_(prefix_out.float() * prefix_weight + suffix_out.float() * suffix_weight)
    lse.copy_(maximum + total.log())
    return out, lse


def finite_lse(convention: float) -> float:
    """The lse of a row without keys as PR 49294 had it: 0, so that its unwritten output is merged."""
    return 0.0
