"""Faults of padded requests: they are taken for live ones, or store where live ones read."""

from __future__ import annotations

from torch import Tensor

from harness.engine.batch import Batch, DecodeInputs
from harness.engine.schedule.block_pool import BlockPool
from harness.engine.schedule.config import NULL_BLOCK


def reset_full_layers_only(static: Batch, num_live: int, slot: int) -> None:
    """Reset the slots of full-attention layers only: in window layers padding stores at the slots of the last replay
    (sgl-project/sglang#24743)."""
    static.slot_mapping[num_live:] = slot


def from_block_zero_on(blocks: Tensor) -> Tensor:
    """Skip negative blocks: padding was marked with -1 once, and is marked with 0 now (PR 39064)."""
    return blocks >= 0


def one_key_each(decode: DecodeInputs, num_live: int, filler: int, num_keys: int = 0) -> None:
    """Give padded requests one key so that no softmax is empty: it is read from the null block
    (PR 38436, sgl-project/sglang#1779)."""
    for table in (decode.block_table, decode.window_table):
        if table is not None:
            table[num_live:] = NULL_BLOCK
    decode.seq_lens[num_live:] = decode.query_len
    decode.state_blocks[num_live:] = NULL_BLOCK


def null_block_as_trash(pool: BlockPool) -> int:
    """Store padding in the block that padded table entries name, where it is read again
    (huggingface/transformers#46765)."""
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
