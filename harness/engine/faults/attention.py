"""Faults of attention: of merges of partial results, of decode plans, of indices, and of token
lists.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from harness.core.op_params import PAGES_OF_MANAGER_BLOCK
from harness.engine.kernels import Workspace
from harness.engine.schedule.sequence import ScheduledSequence
from harness.kernels.torch.decode import gather_slots
from harness.memory.bounds import check_indices


def minus_inf_only(lse: Tensor) -> Tensor:
    """Take -inf alone in lse [H, T] for an empty side, where the backend writes +inf (PR 15492)."""
    return lse == float("-inf")


def suffix_by_prefix_strides(prefix_out: Tensor, suffix_out: Tensor) -> Tensor:
    """Read the suffix [T, H, V] at the offsets of the prefix."""
    return torch.as_strided(suffix_out, suffix_out.shape, prefix_out.stride())


def reshaped_lse(lse_by_token: Tensor) -> Tensor:
    """Read [T, H] as [H, T] without transposing (PR 26397)."""
    return lse_by_token.reshape(lse_by_token.shape[1], lse_by_token.shape[0])


def zero_lse(out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Let a rank without keys add an lse [H, T] of 0, as zeroed memory holds it (PR 38416)."""
    return torch.zeros_like(out), torch.zeros_like(lse)


def prefix_minus_padded(span: range, num_ranks: int) -> range:
    """Subtract padded tokens from an unpadded length: a prefix is shorter by its padding
    (sgl-project/sglang#23415).
    """
    return span[: max(0, len(span) - -len(span) % num_ranks)]


def without_last_key(span: range, num_ranks: int) -> range:
    """Count the keys before the last one on its owner."""
    return span[:-1]


def latents_from_the_front(
    q: Tensor, kv_c: Tensor, k_pe: Tensor, first: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Take the first latents [T, R] of the batch for prompts: they belong to decodes (PR 14253)."""
    count = len(q) - first
    return q[first:], kv_c[:count], k_pe[:count]


def fewest_tokens_first(prompts: list[ScheduledSequence]) -> list[ScheduledSequence]:
    """Order prompts by their new tokens alone.

    The merge counts prompts with context, and needs them first.

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

    An empty side has weight 0, but 0 times an unwritten NaN is NaN; an unwritten lse makes a weight
    of any size. Its shapes are in :func:`harness.kernels.torch.merge.merge_attn_states`.
    """
    minus_inf = float("-inf")
    prefix_lse = prefix_lse.masked_fill(prefix_lse == float("inf"), minus_inf)
    suffix_lse = suffix_lse.masked_fill(suffix_lse == float("inf"), minus_inf)
    maximum = torch.maximum(prefix_lse, suffix_lse)
    prefix_sum, suffix_sum = (prefix_lse - maximum).exp(), (suffix_lse - maximum).exp()
    total = prefix_sum + suffix_sum
    prefix_weight, suffix_weight = (
        (side / total).transpose(0, 1)[..., None] for side in (prefix_sum, suffix_sum)
    )
    out = torch.empty_like(prefix_out)
    lse = torch.empty_like(prefix_lse)
    out.copy_(prefix_out.float() * prefix_weight + suffix_out.float() * suffix_weight)
    lse.copy_(maximum + total.log())
    return out, lse


def write_items_in_use(items: Tensor, begin: Tensor, end: Tensor, used: Tensor) -> None:
    """Fill in the items [B, M, 3] with work only: the grid's other blocks read unwritten ones.

    begin, end, used: [B, M] (flashinfer-ai/flashinfer#4002).
    """
    requests = torch.arange(items.shape[0], device=items.device)[:, None].expand_as(end)
    for column, values in enumerate((requests, begin, end)):
        items[..., column][used] = values[used].to(items.dtype)


def room_for_this_plan(num_splits: Tensor) -> int:
    """Make room for the pieces of this plan, num_splits [B].

    A graph keeps the number of its capture (PR 20301).
    """
    return max(int(num_splits.amax()), 1)


def counters_in_scratch(workspace: Workspace, num_requests: int) -> Tensor:
    """Count in the scratch that all kernels share: the last kernel left it dirty (PR 25520)."""
    return workspace.scratch.view(torch.int32).flatten()[:num_requests]


def rebind_plan(plans: dict[int, Any], size: int, fresh: Any) -> None:
    """Keep the new plan, and leave the tensors that the graph captured as they were (PR 35175)."""
    plans[size] = fresh


def offsets_in_32_bits(blocks: Tensor, page_stride: int) -> Tensor:
    """Multiply [A] in 32 bits and widen afterwards: pages past 2**32 elements wrap
    (flashinfer-ai/flashinfer#3136).
    """
    return (blocks.to(torch.int64) * page_stride) & 0xFFFFFFFF


def packed_pages(kv_cache: Tensor) -> Tensor:
    """Page n [P, D] begins n * P * D elements behind page 0, whatever the stride of pages (PR
    45111).
    """
    return kv_cache.as_strided(kv_cache.shape, (kv_cache[0].numel(), *kv_cache.stride()[1:]))


def one_branch(kv_cache: Tensor) -> Tensor:
    """Store into contiguous pages [N, P, D] alone, and drop what is for others
    (HYGON-AI/sglang-das#317).
    """
    return kv_cache if kv_cache.is_contiguous() else torch.empty_like(kv_cache)


def page_stride_for_manager_blocks(kv_cache: Tensor) -> Tensor:
    """[N, P, D]: blocks of several pages begin stride(0) apart, their pages one behind the other
    (PR 51718).
    """
    num_pages, page = len(kv_cache), kv_cache[0].numel()
    sizes = (-(-num_pages // PAGES_OF_MANAGER_BLOCK), PAGES_OF_MANAGER_BLOCK, *kv_cache.shape[1:])
    blocks = kv_cache.as_strided(sizes, (kv_cache.stride(0), page, *kv_cache.stride()[1:]))
    return blocks.flatten(0, 1)[:num_pages]


def clipped_rows(state_blocks: Tensor, num_blocks: int) -> Tensor:
    """Assume states for half the pool and clip larger ids [B] to the last one, so requests share a
    state.
    """
    return state_blocks.to(torch.int64).clamp(0, num_blocks // 2 - 1)


def slots_from_the_end(slot_mapping: Tensor, num_slots: int) -> tuple[Tensor, Tensor]:
    """Index [T] as Python does: slot -1 of a padded token is the last slot of the last block (PR
    43869).
    """
    tokens = torch.arange(slot_mapping.shape[0], device=slot_mapping.device)
    return tokens, slot_mapping.to(torch.int64) % num_slots


def load_clamped(kv_cache: Tensor, indices: Tensor, chosen: Tensor) -> Tensor:
    """Load slot 0 for an index [T, K] of -1 and trust the mask of the scores: [T, K, D] (PR
    57156).
    """
    slots = check_indices(indices.clamp(min=0), kv_cache.shape[0] * kv_cache.shape[1], "indices")
    return gather_slots(kv_cache, slots)


def store_whole_tiles(selected: Tensor, tiles: Tensor, num_decode_tokens: int) -> None:
    """Store the rows [T, K] of padding of the last tile too, over the first rows of prompts (PR
    32175).
    """
    rows = min(len(selected), len(tiles))
    selected[:rows] = tiles[:rows]
