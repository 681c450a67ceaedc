"""The references of `flashinfer/trace/templates/attention.py` of flashinfer-python 0.7.2.post1, which
solutions of FlashInfer-Bench are validated against. They are plain torch.
"""

import sources
import torch

from harness import Refused, kernel

attention = sources.load("flashinfer.trace.templates.attention")
SHAPES = {"like": "deepseek", "num_heads": 16}
ONE_QUERY = {**SHAPES, "query_len": 1}
MOST_ELEMENTS = 1 << 27


def refuse_large(cache):
    if cache.numel() > MOST_ELEMENTS:
        raise Refused("it converts the whole pool to float32, which takes gigabytes here")


@kernel(
    op="mla_decode",
    name="flashinfer-decode",
    style="trace_decode_ps64",
    kv=("bf16",),
    shapes=ONE_QUERY,
)
def paged_decode(*args):
    refuse_large(args[2])
    return attention._mla_paged_decode_reference(*args)


@kernel(
    op="mla_decode",
    name="flashinfer-decode-of-slots",
    style="trace_decode_ps1",
    kv=("bf16",),
    shapes=ONE_QUERY,
)
def decode_of_slots(*args):
    refuse_large(args[2])
    return attention._mla_paged_decode_reference(*args)


@kernel(
    op="mla_decode",
    name="flashinfer-prefill",
    style="trace_prefill_ps1",
    kv=("bf16",),
    shapes=SHAPES,
)
def paged_prefill(*args):
    refuse_large(args[2])
    return attention._mla_paged_prefill_reference(*args)


@kernel(op="mla_decode", name="flashinfer-trtllm", kv=("bf16",), shapes=SHAPES, gives_lse=False)
def trtllm_decode(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    return attention._trtllm_batch_decode_mla_reference(
        q, kv_cache, None, 128, 512, 64, block_table, seq_lens, 0, bmm1_scale=scale
    )


@kernel(
    op="mla_decode", name="flashinfer-trtllm-one", kv=("bf16",), shapes=ONE_QUERY, gives_lse=False
)
def trtllm_one_query(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    return trtllm_decode(q, kv_cache, block_table, seq_lens, scale=scale)


@kernel(
    op="mla_decode_sparse",
    name="flashinfer-dsa",
    kv=("bf16",),
    shapes={"like": "deepseek", "num_heads": 16},
    lse_base="2",
)
def dsa(q, kv_cache, indices, *, scale, kv_scale=None):
    refuse_large(kv_cache)
    return attention._dsa_paged_reference(
        q[..., :512], q[..., 512:], kv_cache[..., :512], kv_cache[..., 512:], indices, scale
    )


@kernel(
    op="mla_decode_sparse",
    name="flashinfer-trtllm-sparse",
    kv=("bf16",),
    shapes={"like": "deepseek", "num_heads": 16},
    gives_lse=False,
)
def trtllm_sparse(q, kv_cache, indices, *, scale, kv_scale=None):
    slots = kv_cache.reshape(-1, 1, 576)
    lengths = torch.full((len(q),), indices.shape[1])
    out = attention._trtllm_batch_decode_mla_sparse_reference(
        q[:, None], slots, None, 128, 512, 64, indices[:, None], lengths, 0, 0, bmm1_scale=scale
    )
    return out[:, 0]
