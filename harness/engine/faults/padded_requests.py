"""Faults of padding and dummy batches: taken for live rows, or stored where live rows read."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.engine.batch import NO_KEYS, Batch, DecodeInputs, Padding, fill_static
from harness.engine.schedule.block_pool import BlockPool
from harness.engine.schedule.config import NULL_BLOCK
from harness.memory.poison.patterns import Poison


def reset_full_layers_only(static: Batch, num_live: int, slot: int) -> None:
    """Reset no slots of window layers: padding stores at the slots of the last replay (sgl-project/sglang#24743)."""
    static.slot_mapping[num_live:] = slot


def from_block_zero_on(blocks: Tensor) -> Tensor:
    """Skip negative blocks: padding was marked with -1 once, and is marked with 0 now (PR 39064)."""
    return blocks >= 0


def one_key_each(decode: DecodeInputs, num_live: int, filler: int, num_keys: int = 0) -> None:
    """Give padded requests one key, read from the null block (PR 38436, sgl-project/sglang#1779)."""
    for table in (decode.block_table, decode.window_table):
        if table is not None:
            table[num_live:] = NULL_BLOCK
    decode.seq_lens[num_live:] = decode.query_len
    decode.state_blocks[num_live:] = NULL_BLOCK


def null_block_as_trash(pool: BlockPool) -> int:
    """Store padding in the null block, where padded table entries read it (huggingface/transformers#46765)."""
    return NULL_BLOCK


def all_rows(batch: Batch) -> None:
    """Take the maximum over every row of the batch, rows of padding included (PR 37442)."""
    return None


def divide_without_guard(accumulated: Tensor, total: Tensor) -> Tensor:
    """accumulated [..., R] / total [...]. Both are 0 where no key was seen: NaN (PR 57017)."""
    return accumulated / total[..., None]


def block_minus_one(decode: DecodeInputs, num_live: int, filler: int, num_keys: int = 0) -> None:
    """Pad tables with -1 and lengths with 1, so that a kernel uses -1 as an offset (PR 35431)."""
    decode.block_table[num_live:] = -1
    decode.seq_lens[num_live:] = 1
    decode.state_blocks[num_live:] = NULL_BLOCK


def build_then_clear(static: Batch, dummy: Batch, poison: Poison, padding: Padding = NO_KEYS) -> None:
    """Build the metadata before the slots are cleared: the backend's copy has the slots of the last live step."""
    last_step = static.slot_mapping.clone()
    fill_static(static, dummy, poison, padding)
    if static.backend_slots is not None:
        static.backend_slots.copy_(last_step)


def zeroed_slots(num_tokens: int, slot: int, device: torch.device) -> Tensor:
    """A buffer of zeros: slot 0 is the first of the null block (PR 38719)."""
    return torch.zeros(num_tokens, dtype=torch.int64, device=device)


def slot_zero(padding: Padding) -> int:
    """Leave slots of padding and of dummy batches at 0: the first slot of the null block (PR 39444)."""
    return 0


def token_above_all(logits: Tensor) -> Tensor:
    """Start from a token past the vocabulary, which stays in a row of NaN: no logit is greater (PR 53029)."""
    vocab_size = logits.shape[-1]
    best = logits.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf).argmax(dim=-1)
    return torch.where(logits.isnan().all(dim=-1), vocab_size, best)
