"""Faults of attention: of merges of partial results, of decode plans, of indices, and of token
lists.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from harness.engine.batch import Batch, DecodeInputs
from harness.engine.kernels import Workspace
from harness.engine.model.layers import rotate
from harness.engine.model.mla import MLAAttention
from harness.engine.schedule.config import KV_SCALE, PAGE_SIZE
from harness.engine.schedule.sequence import ScheduledSequence
from harness.memory.graph.launch import ACTIVE


def zero_lse(out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Let a rank without keys, of out [T, H, V], add an lse [H, T] float32 of 0, as zeroed memory
    holds it (vllm-project/vllm#38416).
    """
    return torch.zeros_like(out), torch.zeros_like(lse)


def prefix_minus_padded(span: range, num_ranks: int) -> range:
    """Subtract padded tokens from an unpadded length: a prefix is shorter by its padding
    (sgl-project/sglang#23415).
    """
    # `-n % ranks` is the padding of n tokens up to a multiple of the ranks.
    return span[: max(0, len(span) - -len(span) % num_ranks)]


def without_last_key(span: range, num_ranks: int) -> range:
    """Count the keys before the last one on its owner."""
    return span[:-1]


def rows_taken_for_tokens(
    attention: MLAAttention, x: Tensor, positions: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rotate as many rows of query and key as there are tokens, and count rows for tokens: most
    heads are not rotated, and numbers of the latents beside the key are (vllm-project/vllm#12777).

    x [T, hidden], positions [T] int64 -> as `engine.attention.query_and_latents`.
    """
    start = torch.zeros_like(positions)  # at position 0 nothing is rotated
    q_nope, q_pe = attention.project_q(x, start)
    kv_c, k_pe = attention.project_kv(x, start)
    if not attention.use_rope:
        return q_nope, q_pe, kv_c, k_pe
    width = k_pe.shape[-1]
    rank = kv_c.shape[-1]
    # [tokens, heads, E] taken for [rows, E]: the first rows are heads of the first token.
    heads = q_pe.reshape(-1, width).clone()
    heads[: len(x)] = rotate(heads[: len(x)], positions, attention.rope_theta)
    # The kernel steps by E from the first key, not by the stride of a record, so it rotates
    # latents.
    records = torch.cat((kv_c, k_pe), dim=-1).flatten()
    keys = records[rank : rank + len(x) * width].view(-1, width)
    keys.copy_(rotate(keys, positions, attention.rope_theta))
    stored = records.view(len(x), -1)
    return q_nope, heads.view(q_pe.shape), stored[:, :rank], stored[:, rank:]


def latents_from_the_front(
    q: Tensor, kv_c: Tensor, k_pe: Tensor, first: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Take the first latents of the batch for prompts: they belong to decodes
    (vllm-project/vllm#14253).

    q [T, H, nope + E], kv_c [T, R] and k_pe [T, E] float32.
    """
    count = len(q) - first
    return q[first:], kv_c[:count], k_pe[:count]


def fewest_tokens_first(prompts: list[ScheduledSequence]) -> list[ScheduledSequence]:
    """Order prompts by their new tokens alone.

    The merge counts prompts with context, and needs them first.

    vllm-project/vllm#47381 repaired this order for decodes; the count is that of #36540.
    """
    return sorted(prompts, key=lambda item: item.num_new_tokens)


def counters_in_scratch(workspace: Workspace, num_requests: int) -> Tensor:
    """Count in the scratch that all kernels share: the last kernel left it dirty
    (vllm-project/vllm#25520).
    """
    return workspace.scratch.view(torch.int32).flatten()[:num_requests]


def rebind_plan(plans: dict[int, Any], size: int, fresh: Any) -> None:
    """Keep the new plan, and leave the tensors that the graph captured as they were
    (vllm-project/vllm#35175).
    """
    plans[size] = fresh


def packed_pages(kv_cache: Tensor) -> Tensor:
    """Page n of kv_cache [N, P, D] begins n * P * D elements behind page 0, whatever the stride of
    pages (vllm-project/vllm#45111).

    The cache is float32, bfloat16 or float8_e4m3fn.
    """
    return kv_cache.as_strided(kv_cache.shape, (kv_cache[0].numel(), *kv_cache.stride()[1:]))


def clipped_rows(state_blocks: Tensor, num_blocks: int) -> Tensor:
    """Assume states for half the pool and clip larger ids to the last one, so requests share a
    state.

    state_blocks [B] int32 or int64 -> [B] int64.
    """
    return state_blocks.to(torch.int64).clamp(0, num_blocks // 2 - 1)


def slots_from_the_end(slot_mapping: Tensor, num_slots: int) -> tuple[Tensor, Tensor]:
    """Index as Python does: slot -1 of a padded token is the last slot of the last block
    (vllm-project/vllm#43869).

    slot_mapping [T] int64 -> tokens [T] and slots [T] int64.
    """
    tokens = torch.arange(slot_mapping.shape[0], device=slot_mapping.device)
    return tokens, slot_mapping.to(torch.int64) % num_slots


def store_whole_tiles(selected: Tensor, tiles: Tensor, num_decode_tokens: int) -> None:
    """Store the rows of padding of the last tile too, over the first rows of prompts
    (vllm-project/vllm#32175).

    selected [T, K] and tiles [padded, K] are int32.
    """
    rows = min(len(selected), len(tiles))
    selected[:rows] = tiles[:rows]


def context_of_last(lengths: list[int]) -> int:
    """Take the context of the last request for the longest (ikawrakow/ik_llama.cpp#1880)."""
    return lengths[-1]


def lengths_for_sums(lengths: list[int]) -> list[int]:
    """Let a request start where the one before it is long (InternLM/lmdeploy#3887)."""
    # The right offsets are the running sum. These are right for two requests alone.
    return [0, *lengths[:-1], sum(lengths)]


def no_scale_for_decodes(batch: Batch, scale: float | None) -> float | None:
    """Hand out the scale for prompts, and 1 for steps that generate alone
    (NVIDIA/TensorRT-LLM#16916).
    """
    return scale if batch.prefill or scale is None else 1.0


def scaled_all_the_same(latents: Tensor) -> Tensor:
    """Multiply latents [C, D] of floats by a scale: the result is float32
    (sgl-project/sglang#18396).
    """
    return latents.float() * KV_SCALE


def no_window_for_one(inputs: DecodeInputs, window: int) -> int:
    """Let a single query token see all that the table has (ml-explore/mlx-lm#843)."""
    return inputs.block_table.shape[1] * PAGE_SIZE if inputs.query_len == 1 else window


def slots_read_on_the_host(batch: Batch) -> Tensor:
    """Read the slots [T] int64 on the host where a request has several query tokens, so that a
    capture keeps them (NVIDIA/TensorRT-LLM#17110).
    """
    if ACTIVE.get() is None or batch.decode is None or batch.decode.query_len == 1:
        return batch.stored_slots
    # The modes that record launches would see the copy to the host. The fault is that nobody does.
    with _disable_current_modes():
        return torch.tensor(batch.stored_slots.tolist())
