"""Kernels of `flag_gems/fused` of flag-gems 5.0.2."""

import contextlib
import types

import sources
import torch
import triton.language as tl

from harness import kernel

device = "cuda" if torch.cuda.is_available() else "cpu"
device_fn = types.SimpleNamespace(device=lambda index: contextlib.nullcontext())
sources.stub(
    "flag_gems.runtime",
    device=types.SimpleNamespace(vendor_name="nvidia", name=device),
    error=None,
    torch_device_fn=device_fn,
)
sources.stub(
    "flag_gems.utils", triton_lang_extension=tl, libentry=lambda: lambda function: function
)
sources.stub("flag_gems.utils.device_info", get_device_capability=lambda: (9, 0))
sources.stub("flag_gems.utils.triton_version_utils", has_triton_tle=lambda *version: False)
flash_mla = sources.load("flag_gems.fused.flash_mla")
concat_and_cache = sources.load("flag_gems.fused.concat_and_cache_mla")
sparse = sources.load("flag_gems.fused.flashmla_sparse")
bin_topk = sources.load("flag_gems.fused.DSA.bin_topk")
if device == "cpu":
    # The interpreter has no clock that could choose.
    for tuned in (sparse.triton_flash_mla_sparse_fwd, bin_topk.kernel_bucket_sort_topk):
        tuned.configs = tuned.configs[:1]

SHAPES = {"like": "deepseek", "num_heads": 16, "layout": "contiguous"}


def called(q, kv_cache, block_table, seq_lens, scale):
    """The kernel has no argument for the scale: it divides by the root of the width."""
    batch, num_tokens, num_heads, width = q.shape
    q = q * (scale * width**0.5)
    sizes = (num_heads, 1, width, 512)
    page_size = kv_cache.shape[1]
    return flash_mla.flash_mla(
        q, block_table, kv_cache, None, page_size, batch, num_tokens, seq_lens, *sizes, True
    )


@kernel(op="mla_decode", name="flaggems", kv=("bf16",), shapes=SHAPES, gives_lse=False)
def any_query_length(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    return called(q, kv_cache, block_table, seq_lens, scale)


@kernel(
    op="mla_decode",
    name="flaggems-one-query",
    kv=("bf16",),
    shapes={**SHAPES, "query_len": 1},
    gives_lse=False,
)
def one_query(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    return called(q, kv_cache, block_table, seq_lens, scale)


@kernel(op="write_kv", name="flaggems-write", kv=("fp32", "bf16"))
def write(kv_c, k_pe, kv_cache, slot_mapping, *, kv_scale=None):
    scale = torch.ones(1, device=kv_c.device)
    concat_and_cache.concat_and_cache_mla(kv_c, k_pe, kv_cache, slot_mapping, "auto", scale)


@kernel(
    op="mla_decode_sparse",
    name="flaggems-sparse",
    kv=("bf16",),
    shapes={"like": "deepseek", "num_heads": 64, "layout": "contiguous"},
)
def sparse_decode(q, kv_cache, indices, *, scale, kv_scale=None):
    slots = kv_cache.reshape(-1, 1, 576)
    out, _, lse = sparse.flash_mla_sparse_fwd(q, slots, indices[:, None], scale)
    return out, lse


@kernel(op="select_topk", name="flaggems-topk")
def select(logits, seq_lens, *, topk: int):
    num_queries = len(logits) // len(seq_lens)
    steps = torch.arange(1 - num_queries, 1, device=logits.device)
    ends = (seq_lens[:, None] + steps).flatten().to(torch.int32)
    starts = torch.zeros_like(ends)
    return bin_topk.bucket_sort_topk_triton(logits.contiguous(), starts, ends, topk)
