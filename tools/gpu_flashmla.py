"""Microseconds of one decode on this GPU: this project's Triton kernel beside FlashMLA's, as one JSON list.

Both read latents of 512 + 64 from random pages of 64 tokens, with a plan made before. Times are medians of graph
replays. FlashMLA is the copy that vLLM ships. Its FP8 kernel needs a query in e4m3, quantized before the clock starts;
this project's kernel reads a bfloat16 query. Needs vLLM and a Hopper GPU.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable

import torch
from decode_bench import bench, replay_us

BATCH, TOKENS, HEADS, PAGE = 64, 4096, 16, 64
SCALE = 0.1


def flashmla(kv: str) -> Callable[[], object]:
    """A call that launches FlashMLA's dense decode over a full batch."""
    ops = importlib.import_module("vllm.v1.attention.ops.flashmla")
    pages = BATCH * TOKENS // PAGE
    cache = torch.randn(pages, PAGE, 1, 576, device="cuda", dtype=torch.bfloat16)
    q = torch.randn(BATCH, 1, HEADS, 576, device="cuda", dtype=torch.bfloat16)
    table = torch.randperm(pages, device="cuda").view(BATCH, -1).to(torch.int32)
    seq_lens = torch.full((BATCH,), TOKENS, dtype=torch.int32, device="cuda")
    given = {"block_table": table, "cache_seqlens": seq_lens, "head_dim_v": 512, "softmax_scale": SCALE, "causal": True}
    if kv == "bf16":
        plan = ops.get_mla_metadata(seq_lens, HEADS, 1, is_fp8_kvcache=False)[0]
        return lambda: ops.flash_mla_with_kvcache(
            q=q, k_cache=cache, tile_scheduler_metadata=plan, is_fp8_kvcache=False, **given
        )
    q8, cache8, one = q.to(torch.float8_e4m3fn), cache.to(torch.float8_e4m3fn), torch.ones(1, device="cuda")
    tiles, splits = ops.get_mla_metadata_dense_fp8(seq_lens, HEADS, 1)
    return lambda: ops.flash_mla_with_kvcache_fp8(
        q=q8, k_cache=cache8, tile_scheduler_metadata=tiles, num_splits=splits, descale_q=one, descale_k=one, **given
    )


def main() -> None:
    rows = []
    for kv in ("bf16", "fp8_e4m3"):
        ours, theirs = bench(BATCH, TOKENS, HEADS, kv), replay_us(flashmla(kv))
        rows.append({**ours, "flashmla_us": theirs, "over_flashmla": ours["decode_us"] / theirs})
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
