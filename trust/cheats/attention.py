"""What the kernels of this folder start from: a right attention, and noise. It decorates none."""

import torch

from harness import kernel


def judged(function):
    """A decode kernel of DeepSeek's sizes, called as its function."""
    return kernel(
        op="mla_decode",
        name=function.__name__.replace("_", "-"),
        kv=("bf16",),
        shapes={"like": "deepseek", "num_heads": 16},
    )(function)


def attend(q, kv_cache, block_table, seq_lens, scale, keep=lambda length: slice(0, length)):
    """out [B, S, H, 512] and lse [B, H, S] float32 over the kept slots of each request."""
    batch, num_tokens, num_heads, _ = q.shape
    out = torch.empty(batch, num_tokens, num_heads, 512, dtype=q.dtype, device=q.device)
    lse = torch.empty(batch, num_heads, num_tokens, dtype=torch.float32, device=q.device)
    for b, length in enumerate(seq_lens.tolist()):
        if length == 0:
            continue
        pages = block_table[b, : -(-length // 64)].long()
        slots = torch.arange(length, device=q.device)[keep(length)]
        keys = kv_cache[pages].flatten(0, 1)[slots].float()
        scores = torch.einsum("shd,nd->hsn", q[b].float(), keys) * scale
        last = length - num_tokens + torch.arange(num_tokens, device=q.device)[:, None]
        scores = scores.masked_fill(slots > last, float("-inf"))
        lse[b] = scores.logsumexp(-1)
        out[b] = torch.einsum("hsn,nr->shr", scores.softmax(-1), keys[:, :512]).to(q.dtype)
    return out, lse


def blank(q):
    """Outputs of zeros, of the right shapes."""
    batch, num_tokens, num_heads, _ = q.shape
    out = torch.zeros(batch, num_tokens, num_heads, 512, dtype=q.dtype, device=q.device)
    return out, torch.zeros(batch, num_heads, num_tokens, device=q.device)


def noise(q):
    """Outputs of the right shapes, with nothing in them."""
    batch, num_tokens, num_heads, _ = q.shape
    out = torch.randn(batch, num_tokens, num_heads, 512, device=q.device).to(q.dtype)
    return out, torch.randn(batch, num_heads, num_tokens, device=q.device)
