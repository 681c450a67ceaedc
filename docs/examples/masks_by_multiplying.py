"""A decode kernel with a bug: it masks unused slots of the cache by multiplying them with 0.

See the README.
"""

import torch

from harness import kernel


@kernel(op="mla_decode", name="mine", devices=("cpu",))
def mine(
    q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, kv_lora_rank=512, metadata=None
):
    batch, num_tokens, num_heads, _ = q.shape
    page = kv_cache.shape[1]
    out = torch.zeros(batch, num_tokens, num_heads, kv_lora_rank, dtype=q.dtype)
    lse = torch.full((batch, num_heads, num_tokens), float("-inf"))
    for b, length in enumerate(seq_lens.tolist()):
        if length == 0:
            continue
        pages = block_table[b, : -(-length // page)].long()
        keys = kv_cache[pages].flatten(0, 1).float()
        if kv_cache.dtype == torch.float8_e4m3fn:
            keys = keys * kv_scale
        slots = torch.arange(len(keys))
        last = length - num_tokens + torch.arange(num_tokens)
        scores = torch.einsum("shd,nd->hsn", q[b].float(), keys) * scale
        scores = scores.masked_fill(slots > last[:, None], float("-inf"))
        lse[b] = scores.logsumexp(-1)
        used = slots < length
        values = keys[:, :kv_lora_rank] * used[:, None]
        out[b] = torch.einsum("hsn,nr->shr", scores.softmax(-1), values).to(q.dtype)
    return out, lse
