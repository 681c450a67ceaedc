"""Requests of padding whose block table names no block."""

from __future__ import annotations

from harness.engine.batch import DecodeInputs
from harness.engine.config import NULL_BLOCK


def block_minus_one(decode: DecodeInputs, num_live: int, filler: int, num_keys: int = 0) -> None:
    """Pad tables with -1 and lengths with 1, so that a kernel uses -1 as an offset (vllm-project/vllm#35431)."""
    decode.block_table[num_live:] = -1
    decode.seq_lens[num_live:] = 1
    decode.state_blocks[num_live:] = NULL_BLOCK
