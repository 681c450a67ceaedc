"""`exllamav3/modules/attention_fn/mla_triton.py` of exllamav3 1.6.5: its caches of latents and of rope
keys lie apart, so the adapters copy them.
"""

import types

import sources
import torch

from harness import kernel

empty = types.SimpleNamespace(
    get=lambda device, shape, dtype, name: torch.empty(shape, dtype=dtype, device=device)
)
sources.stub("exllamav3.util.tensor", g_tensor_cache=empty)
# These are for caches of int4, which the extension in C++ writes.
sources.stub(
    "exllamav3.modules.attention_fn.triton_paged", _qc_load_kt=None, _qc_load_v=None, _rot_h32=None
)
mla = sources.load("exllamav3.modules.attention_fn.mla_triton")
mla.torch = sources.Torch()
if not torch.cuda.is_available():
    mla.pick_config = lambda device, name, key, candidates, probe: candidates[0]


@kernel(
    op="mla_decode",
    name="exllamav3",
    kv=("bf16",),
    shapes={"like": "deepseek", "num_heads": 16},
    gives_lse=False,
)
def decode(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    batch, num_tokens, num_heads, _ = q.shape
    by_head = q.flatten(0, 1).transpose(0, 1)
    caches = kv_cache[:, :, None].split((512, 64), dim=-1)
    out = mla.mla_attn_triton_decode(
        by_head[..., :512].contiguous(),
        by_head[..., 512:].contiguous(),
        *(one.contiguous() for one in caches),
        block_table,
        seq_lens,
        batch,
        num_tokens,
        softmax_scale=scale,
    )
    return out.transpose(0, 1).reshape(batch, num_tokens, num_heads, 512)


@kernel(
    op="write_kv",
    name="exllamav3-append",
    kv=("fp32", "bf16"),
    shapes={"like": "deepseek", "layout": "contiguous"},
)
def append(kv_c, k_pe, kv_cache, slot_mapping, *, kv_scale=None):
    # It appends to requests: each token is one, with one page. It has no padded tokens.
    live = slot_mapping[slot_mapping >= 0]
    rows = (one[slot_mapping >= 0][:, None] for one in (kv_c, k_pe))
    page_size, rank = kv_cache.shape[1], kv_c.shape[1]
    caches = [kv_cache[..., :rank].contiguous(), kv_cache[..., rank:].contiguous()]
    pages, places = live // page_size, live % page_size
    # `places` counts within the first page, which stands in column 0 of the table.
    mla.mla_kv_append(*rows, *caches, pages[:, None].to(torch.int32), places.to(torch.int32))
    kv_cache[..., :rank], kv_cache[..., rank:] = caches
