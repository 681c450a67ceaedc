"""`flag_gems/fused/flash_mla.py` of flag-gems 5.0.2; FLAG_GEMS is the folder of the unpacked wheel."""

import contextlib
import importlib.util
import os
import sys
import types
from pathlib import Path

import torch
import triton.language as tl

from harness import kernel

for name in (
    "flag_gems",
    "flag_gems.runtime",
    "flag_gems.utils",
    "flag_gems.utils.device_info",
    "flag_gems.fused",
):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = []
runtime = sys.modules["flag_gems.runtime"]
device = "cuda" if torch.cuda.is_available() else "cpu"
runtime.device = types.SimpleNamespace(vendor_name="nvidia", name=device)
runtime.error = None
runtime.torch_device_fn = types.SimpleNamespace(device=lambda index: contextlib.nullcontext())
sys.modules["flag_gems.utils"].triton_lang_extension = tl
sys.modules["flag_gems.utils.device_info"].get_device_capability = lambda: (9, 0)
path = Path(os.environ["FLAG_GEMS"]) / "flag_gems" / "fused" / "flash_mla.py"
spec = importlib.util.spec_from_file_location("gems_flash_mla", path)
gems = importlib.util.module_from_spec(spec)
spec.loader.exec_module(gems)

SHAPES = {"like": "deepseek", "layout": "contiguous"}


def called(q, kv_cache, block_table, seq_lens, scale):
    """The kernel has no argument for the scale: it divides by the root of the width."""
    batch, num_tokens, num_heads, width = q.shape
    return gems.flash_mla(
        q * (scale * width**0.5),
        block_table,
        kv_cache,
        None,
        kv_cache.shape[1],
        batch,
        num_tokens,
        seq_lens,
        num_heads,
        1,
        width,
        512,
        True,
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
