"""LMDeploy with `--quant-policy int8` and MLA: the scales of V are read, and nothing writes them.

Needs torch and lmdeploy alone, and one GPU: `python script.py`. It stores the latents of a request
of 70 tokens in an int8 cache, and attends with one query. DeepseekV2Attention.forward passes the
caches and scales as here: V is the first 512 columns of K, with scales of its own.
"""

import lmdeploy
import torch
from lmdeploy.messages import QuantPolicy
from lmdeploy.pytorch.kernels.cuda import fill_kv_cache, flash_attn_with_kvcache, flatten_kv_cache

HEADS, RANK, WIDE, PAGE, LENGTH = 16, 512, 576, 32, 70
NUM_PAGES = -(-LENGTH // PAGE)
torch.manual_seed(0)
torch.set_default_device("cuda")
latents = torch.randn(LENGTH, 1, WIDE, dtype=torch.bfloat16)
query = torch.randn(1, HEADS, WIDE, dtype=torch.bfloat16)
cache = torch.zeros(NUM_PAGES, PAGE, 1, WIDE, dtype=torch.uint8)
caches = (cache, cache[..., :RANK])
k_scales = torch.zeros(NUM_PAGES, PAGE, 1, 2, dtype=torch.bfloat16)
v_scales = torch.zeros_like(k_scales)  # zeros, as the engine makes them
table = torch.arange(NUM_PAGES, dtype=torch.int32)[None]
start, lengths = torch.zeros(1, dtype=torch.int32), torch.tensor([LENGTH], dtype=torch.int32)
where = (start, lengths, lengths, LENGTH, table)
fill_kv_cache(latents, latents[..., :RANK], *caches, *where, k_scales, v_scales, QuantPolicy.INT8)


def attend(k, v):
    return torch.softmax(query[0].float() @ k.float().T * WIDE**-0.5, -1) @ v.float()


def decode(scales):
    """By the decode kernel, which reads K and V from the cache."""
    return flash_attn_with_kvcache(query, *caches, lengths, table, max_seqlen_q=1, **scales)[0]


def prefill(scales):
    """K and V as the engine recovers them for a prefill, then attention by hand."""
    k, v = flatten_kv_cache(*caches, lengths, table, start, out_dtype=query.dtype, **scales)
    return attend(k[0, :LENGTH], v[0, :LENGTH])


right = attend(latents[:, 0], latents[:, 0, :RANK])
print(f"lmdeploy {lmdeploy.__version__}, torch {torch.__version__}, {torch.cuda.get_device_name()}")
for name, scales in (("K", k_scales), ("V", v_scales)):
    print(f"{name} has scales of {int(scales[..., 0].count_nonzero())} tokens, expected {LENGTH}")
wrong = 0
for way in (decode, prefill):
    for name, scales in (("V's scales, as passed", v_scales), ("K's scales for V too ", k_scales)):
        both = {"k_scales_zeros": k_scales, "v_scales_zeros": scales}
        got = way(both | {"quant_policy": QuantPolicy.INT8}).float()
        error = float((got - right).norm() / right.norm())
        wrong += not error < 0.1
        print(f"{way.__name__:7}, {name}: expected norm {right.norm():.2f}, got {got.norm():.2f}")
raise SystemExit(wrong > 0)
