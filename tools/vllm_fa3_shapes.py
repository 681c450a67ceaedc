"""Which shapes let NaN of unused KV slots through FlashAttention-3's paged MLA: query tokens by heads, as a table.

One request of 100 tokens lies in two pages of 64 slots; the 28 slots that nobody wrote hold NaN, or zeros. NaN in the
output means that the kernel loaded the pages whole and multiplied what it masked. Needs vLLM and a Hopper GPU.
"""

from __future__ import annotations

import torch

from harness.engines.vllm.kernels.flash_attention import mla_decode

PAGE, LENGTH, WIDTH = 64, 100, 576
TOKENS = (1, 4, 8, 15, 16, 17, 32, 33, 64, 100)
HEADS = (1, 2, 4, 8, 16, 32)


def cell(tokens: int, heads: int) -> str:
    """`NaN` or `clean`, the shape's query rows in one tile: tokens times heads."""
    generator = torch.Generator("cuda").manual_seed(0)
    q = torch.randn(1, tokens, heads, WIDTH, device="cuda", generator=generator).bfloat16()
    cache = torch.randn(3, PAGE, WIDTH, device="cuda", generator=generator).bfloat16()
    cache[2, LENGTH - PAGE :] = torch.nan
    table = torch.tensor([[1, 2]], dtype=torch.int32, device="cuda")
    seq_lens = torch.tensor([LENGTH], dtype=torch.int32, device="cuda")
    out, _ = mla_decode(q, cache, table, seq_lens, scale=WIDTH**-0.5)
    return "clean" if bool(out.isfinite().all()) else "NaN"


def main() -> None:
    print("| query tokens | " + " | ".join(f"{heads} heads" for heads in HEADS) + " |")
    print("| --- |" + " --- |" * len(HEADS))
    for tokens in TOKENS:
        print(f"| {tokens} | " + " | ".join(cell(tokens, heads) for heads in HEADS) + " |", flush=True)


if __name__ == "__main__":
    main()
