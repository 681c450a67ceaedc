"""Six wrong kernels and a right one, as functions of one request, and as kernels to judge.

Each takes a query q [H, 576], the keys [n, 576] of its request, those of the next request, and the
scale, all float32. It returns out [H, 512]. A page has 64 keys.
"""

import torch

from harness import kernel

HEADS = 16
RANK = 512


def attend(q, keys, scale):
    """Attention of q [H, 576] over keys [n, 576]: [H, 512]."""
    return (q @ keys.T * scale).softmax(-1) @ keys[:, :RANK]


def right(q, keys, others, scale):
    """Attends to all keys."""
    return attend(q, keys, scale)


def query_alone(q, keys, others, scale):
    """Returns the query times the scale, and never reads the cache."""
    return q[:, :RANK] * scale


def first_half(q, keys, others, scale):
    """Attends to the first half of the keys."""
    return attend(q, keys[: max(1, len(keys) // 2)], scale)


def no_last_128(q, keys, others, scale):
    """Leaves out the last 128 keys."""
    return attend(q, keys[: max(1, len(keys) - 128)], scale)


def another_page(q, keys, others, scale):
    """Reads one page of another request in place of its own."""
    mixed = keys.clone()
    size = min(64, len(keys), len(others))
    mixed[:size] = others[:size]
    return attend(q, mixed, scale)


def other_request(q, keys, others, scale):
    """Attends to the keys of the next request."""
    return attend(q, others, scale)


def zeros(q, keys, others, scale):
    """Returns zeros."""
    return torch.zeros_like(q[:, :RANK])


WRONG = (query_alone, first_half, no_last_128, another_page, other_request, zeros)


def _as_kernel(function):
    def call(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
        batch, num_tokens, num_heads, _ = q.shape
        out = torch.zeros(batch, num_tokens, num_heads, RANK, dtype=q.dtype, device=q.device)
        lengths = seq_lens.tolist()
        keys = [
            kv_cache[block_table[b, : -(-n // 64)].long()].flatten(0, 1)[:n].float()
            for b, n in enumerate(lengths)
        ]
        for b, length in enumerate(lengths):
            if length == 0:
                continue
            full = [one for one in keys[b + 1 :] + keys[:b] if len(one)]
            others = full[0] if full else keys[b]
            out[b, 0] = function(q[b, 0].float(), keys[b], others, scale).to(q.dtype)
        return out

    call.__qualname__ = function.__name__
    kernel(
        op="mla_decode",
        name=function.__name__.replace("_", "-"),
        kv=("bf16",),
        gives_lse=False,
        shapes={"like": "deepseek", "num_heads": HEADS, "query_len": 1},
    )(call)


for _one in (right, *WRONG):
    _as_kernel(_one)
