"""A plug-in with a Triton kernel of its own, as its author would write it.

Run by test_triton_plugin.py.
"""

import torch
import triton
import triton.language as tl

from harness import kernel


@triton.jit
def _decode(
    q,
    kv,
    table,
    lengths,
    out,
    lse,
    scale,
    page_stride,
    columns,
    H: tl.constexpr,
    D: tl.constexpr,
    R: tl.constexpr,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    PAGE: tl.constexpr,
):
    request = tl.program_id(0)
    heads, dims, slots = tl.arange(0, HEADS), tl.arange(0, WIDTH), tl.arange(0, PAGE)
    length = tl.load(lengths + request)
    is_query = (heads < H)[:, None] & (dims < D)[None, :]
    query = tl.load(
        q + (request * H + heads[:, None]) * D + dims[None, :], mask=is_query, other=0.0
    )
    largest = tl.full([HEADS], float("-inf"), tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    weighted = tl.zeros([HEADS, WIDTH], tl.float32)
    for start in range(0, length, PAGE):
        page = tl.load(table + request * columns + start // PAGE).to(tl.int64)
        is_key = (start + slots < length)[:, None] & (dims < D)[None, :]
        keys = tl.load(
            kv + page * page_stride + slots[:, None] * D + dims[None, :], mask=is_key, other=0.0
        )
        scores = tl.dot(query, tl.trans(keys)) * scale
        scores = tl.where((start + slots < length)[None, :], scores, float("-inf"))
        new = tl.maximum(largest, tl.max(scores, axis=1))
        kept, shares = tl.exp(largest - new), tl.exp(scores - new[:, None])
        total = total * kept + tl.sum(shares, axis=1)
        weighted = weighted * kept[:, None] + tl.dot(shares.to(tl.bfloat16), keys)
        largest = new
    is_value = (heads < H)[:, None] & (dims < R)[None, :]
    at = (request * H + heads[:, None]) * R + dims[None, :]
    tl.store(out + at, (weighted / total[:, None]).to(tl.bfloat16), mask=is_value)
    tl.store(lse + request * H + heads, largest + tl.log(total), mask=heads < H)


@kernel(op="mla_decode", name="dots", kv=("bf16",), shapes={"query_len": 1})
def dots(
    q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, kv_lora_rank=512, metadata=None
):
    """Online softmax over pages, with both products in bfloat16."""
    batch, _, num_heads, width = q.shape
    out = torch.empty(batch, 1, num_heads, kv_lora_rank, dtype=q.dtype)
    lse = torch.empty(batch, num_heads, 1)
    padded = {"HEADS": triton.next_power_of_2(num_heads), "WIDTH": triton.next_power_of_2(width)}
    _decode[(batch,)](
        q.contiguous(),
        kv_cache,
        block_table,
        seq_lens,
        out,
        lse,
        scale,
        kv_cache.stride(0),
        block_table.shape[1],
        H=num_heads,
        D=width,
        R=kv_lora_rank,
        PAGE=kv_cache.shape[1],
        **padded,
    )
    return out, lse
