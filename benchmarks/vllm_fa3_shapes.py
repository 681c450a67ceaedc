"""Shapes that let NaN of unused KV slots through FlashAttention-3's paged MLA: a table of query
tokens by heads.

One request of 100 tokens lies in two pages of 64 slots; the 28 unused slots hold NaN. NaN in the
output means that the kernel loaded whole pages and multiplied the masked slots. Needs vLLM and a
Hopper GPU.
"""

from __future__ import annotations

import torch

from harness.report.markdown import table
from mla_harness_vllm.kernels import fa3_decode

PAGE, LENGTH, WIDTH = 64, 100, 576
TOKENS = (1, 4, 8, 15, 16, 17, 32, 33, 64, 100)
HEADS = (1, 2, 4, 8, 16, 32)


def outcome(tokens: int, heads: int) -> str:
    """`NaN` or `clean` for one shape.

    The kernel packs its query rows into tiles: tokens times heads.
    """
    generator = torch.Generator("cuda").manual_seed(0)
    q = torch.randn(1, tokens, heads, WIDTH, device="cuda", generator=generator).bfloat16()
    cache = torch.randn(3, PAGE, WIDTH, device="cuda", generator=generator).bfloat16()
    cache[2, LENGTH - PAGE :] = torch.nan
    table = torch.tensor([[1, 2]], dtype=torch.int32, device="cuda")
    seq_lens = torch.tensor([LENGTH], dtype=torch.int32, device="cuda")
    out, _ = fa3_decode(q, cache, table, seq_lens, scale=WIDTH**-0.5)
    return "clean" if bool(out.isfinite().all()) else "NaN"


if __name__ == "__main__":
    rows = [(tokens, *(outcome(tokens, heads) for heads in HEADS)) for tokens in TOKENS]
    print(table(("query tokens", *(f"{heads} heads" for heads in HEADS)), rows))
