"""Faults of memory: of the block pool, of captured graphs, and of padding and dummy batches."""

from __future__ import annotations

import ctypes
from collections import deque

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from torch_poison.patterns import Poison

from harness.core.serving_params import BatchParams
from harness.engine.batch import NO_KEYS, Batch, DecodeInputs, Padding, fill_static
from harness.engine.capture import Bridges
from harness.engine.kernels import Workspace
from harness.engine.paged_model import Forwarded
from harness.engine.schedule.block_pool import CacheGroup, FreeList, Group
from harness.engine.schedule.config import NULL_BLOCK
from harness.engine.schedule.sequence import Sequence
from harness.memory.graph.launch import ACTIVE


def gate_by_kind(groups: tuple[CacheGroup, ...]) -> frozenset[Group]:
    """Zero only in models with states, not with fp8 full attention and a bfloat16 window
    (vllm-project/vllm#47574, vllm-project/vllm#51749).
    """
    names = {group.name for group in groups}
    return frozenset({"attention"}) if "state" in names else frozenset()


def reserve_unchecked(num_blocks: int, free_list: FreeList) -> list[int]:
    """Take any block for the null block, so that block 0 is given to a request
    (ovg-project/kvcached#398).
    """
    free = deque(range(num_blocks - 1))
    if free_list == "lifo":
        free.pop()
    else:
        free.popleft()
    return list(free)


def tokens_scheduled(sequence: Sequence, num_new_tokens: int) -> int:
    """Count the tokens of this step as written.

    If it is dropped, later prompts share unwritten pages (vllm-project/vllm#50283).
    """
    return sequence.num_computed_tokens + num_new_tokens


def counters_that_grow(workspace: Workspace, num_requests: int) -> Tensor:
    """Begin with nothing and make a larger tensor when a batch needs one; graphs keep the old one
    (vllm-project/vllm#45487)."""
    # A fault is a function, so what it keeps lies beside the fields of the object that it is given.
    grown: Tensor | None = vars(workspace).get("grown")
    if grown is None or len(grown) < num_requests:
        grown = torch.zeros(num_requests, dtype=torch.int32, device=workspace.words.device)
        vars(workspace)["grown"] = grown
    return grown[:num_requests]


def counters_made_in_a_capture(workspace: Workspace, num_requests: int) -> Tensor:
    """Keep the counters that the first capture makes, for later graphs and eager steps
    (ROCm/aiter#5393).
    """
    kept: Tensor | None = vars(workspace).get("kept")
    if kept is None:
        kept = torch.zeros(workspace.num_requests, dtype=torch.int32, device=workspace.words.device)
        if ACTIVE.get() is not None:
            vars(workspace)["kept"] = kept
    return kept[:num_requests]


def request_limit(params: BatchParams) -> int:
    """Count the requests that run at once; the largest graph has more (vllm-project/vllm#41016)."""
    return params.max_num_seqs


def replace_table(static: DecodeInputs, live: DecodeInputs) -> None:
    """Build the block table anew for each replay instead of copying it in place
    (sgl-project/sglang#26019).
    """
    table = torch.zeros_like(static.block_table)
    table[: live.block_table.shape[0]] = live.block_table
    # The captured table stays allocated, as in the engine that had the bug; it is only not updated
    # any more.
    table.captured = static.block_table  # type: ignore[attr-defined]
    static.block_table = table


def one_bridge_a_layer(bridges: Bridges, size: int, part: int, result: Tensor) -> Tensor:
    """Share one buffer among all graphs, and replace it when a result [T, H] is larger
    (sgl-project/sglang#34183).

    result is float32, as the engine's activations.
    """
    held: Tensor | None = bridges.get((part,))
    if held is None or len(held) < len(result):
        bridges[part,] = held = result
    return held[: len(result)].copy_(result)


def weak_output(x: Tensor) -> Tensor:
    """In a capture give an eager part the address of x [T, hidden] alone, so that its block is free
    before the part has read it (ROCm/ATOM#1902).

    x is float32; no tensor owns the memory that the result reads.
    """
    if ACTIVE.get() is None:
        return x
    with _disable_current_modes():
        # No reference to x: nothing keeps its block from the next allocation.
        raw = (ctypes.c_char * x.nbytes).from_address(x.data_ptr())
        return torch.frombuffer(raw, dtype=x.dtype).view(x.shape)


def borrow_logits(forwarded: Forwarded, num_live: int) -> Tensor:
    """Hand out the graph's own memory, which the drafter's graph may reuse
    (vllm-project/vllm#53488).
    """
    return forwarded.logits[:num_live]


def reset_full_layers_only(static: Batch, num_live: int, slot: int) -> None:
    """Reset no slots of window layers: padding stores at the slots of the last replay
    (sgl-project/sglang#24743).
    """
    static.slot_mapping[num_live:] = slot


def from_block_zero_on(blocks: Tensor) -> Tensor:
    """Skip negative blocks [B] int64: padding was marked with -1 once, and is marked with 0 now
    (vllm-project/vllm#39064).

    The result is [B] bool.
    """
    return blocks >= 0


def one_key_each(decode: DecodeInputs, num_live: int, filler: int, num_keys: int = 0) -> None:
    """Give padded requests one key, read from the null block (vllm-project/vllm#38436,
    sgl-project/sglang#1779).
    """
    for table in (decode.block_table, decode.window_table):
        if table is not None:
            table[num_live:] = NULL_BLOCK
    decode.seq_lens[num_live:] = decode.query_len
    decode.state_blocks[num_live:] = NULL_BLOCK


def block_minus_one(decode: DecodeInputs, num_live: int, filler: int, num_keys: int = 0) -> None:
    """Pad tables with -1 and lengths with 1, so that a kernel uses -1 as an offset
    (vllm-project/vllm#35431).
    """
    decode.block_table[num_live:] = -1
    decode.seq_lens[num_live:] = 1
    decode.state_blocks[num_live:] = NULL_BLOCK


def build_then_clear(
    static: Batch, dummy: Batch, poison: Poison, padding: Padding = NO_KEYS
) -> None:
    """Build the metadata before the slots are cleared: the backend's copy has the slots of the last
    live step.
    """
    last_step = static.slot_mapping.clone()
    fill_static(static, dummy, poison, padding)
    if static.backend_slots is not None:
        static.backend_slots.copy_(last_step)


def zeroed_slots(num_tokens: int, slot: int, device: torch.device) -> Tensor:
    """A buffer of zeros: slot 0 is the first of the null block (vllm-project/vllm#38719)."""
    return torch.zeros(num_tokens, dtype=torch.int64, device=device)


def token_above_all(logits: Tensor) -> Tensor:
    """Start from a token past the vocabulary, which stays in a row of logits [rows, vocab] float32
    of NaN: no logit is greater (vllm-project/vllm#53029).
    """
    vocab_size = logits.shape[-1]
    best = logits.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf).argmax(dim=-1)
    return torch.where(logits.isnan().all(dim=-1), vocab_size, best)
