"""A decode kernel of DeepSeek's sizes: 512 + 64, bfloat16, 16 heads, pages of 64.

See docs/judge-your-kernel.md.
"""

import torch

from harness import kernel


@kernel(
    op="mla_decode",
    name="mine",
    kv=("bf16",),
    shapes={"like": "deepseek", "num_heads": 16},
    empty_rows="identity",
    empty_lse="-inf",
)
def decode(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Softmax over the pages of one request after another."""
    batch, num_tokens, num_heads, width = q.shape
    if (num_heads, width, q.dtype) != (16, 576, torch.bfloat16):
        raise ValueError(
            f"made for 16 heads of 576 in bfloat16, not {num_heads} of {width} in {q.dtype}"
        )
    out = torch.empty(batch, num_tokens, 16, 512, dtype=q.dtype, device=q.device)
    lse = torch.empty(batch, 16, num_tokens, dtype=torch.float32, device=q.device)
    for b, length in enumerate(seq_lens.tolist()):
        if length == 0:
            out[b], lse[b] = 0, float("-inf")
            continue
        pages = block_table[b, : -(-length // 64)].long()
        keys = kv_cache[pages].flatten(0, 1)[:length].float()
        scores = torch.einsum("shd,nd->hsn", q[b].float(), keys) * scale
        last = length - num_tokens + torch.arange(num_tokens, device=q.device)[:, None]
        scores = scores.masked_fill(torch.arange(length, device=q.device) > last, float("-inf"))
        lse[b] = scores.logsumexp(-1)
        out[b] = torch.einsum("hsn,nr->shr", scores.softmax(-1), keys[:, :512]).to(q.dtype)
    return out, lse
