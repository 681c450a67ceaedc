"""`lmdeploy/pytorch/kernels/cuda/pagedattention.py` of lmdeploy 0.18.0; LMDEPLOY is the folder of the
unpacked wheel. It runs on a GPU: Triton's interpreter refuses one of its calls.
"""

import enum
import importlib
import logging
import os
import sys
import types
from pathlib import Path

from harness import kernel

for name in (
    "lmdeploy",
    "lmdeploy.messages",
    "lmdeploy.utils",
    "paged",
    "paged.turbo_quant",
    "paged.utils",
):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = []
QuantPolicy = enum.IntEnum(
    "QuantPolicy",
    {"NONE": 0, "INT4": 4, "INT8": 8, "FP8": 16, "FP8_E5M2": 17, "TURBO_QUANT": 42},
)
sys.modules["lmdeploy.messages"].QuantPolicy = QuantPolicy
sys.modules["lmdeploy.utils"].get_logger = logging.getLogger
sys.modules["paged.turbo_quant"].hadamard_rotate = None
utils = sys.modules["paged.utils"]
utils.is_cuda = lambda: False
utils.get_device_props = lambda index: {
    "compute_capability": (8, 0),
    "multi_processor_count": 8,
    "warps_per_sm": 64,
    "blocks_per_sm": 32,
}
FOLDER = Path(os.environ["LMDEPLOY"]) / "lmdeploy" / "pytorch" / "kernels" / "cuda"
sys.modules["paged"].__path__ = [str(FOLDER)]
pagedattention = importlib.import_module("paged.pagedattention")

SHAPES = {"like": "deepseek", "query_len": 1}


@kernel(op="mla_decode", name="lmdeploy", kv=("bf16",), shapes=SHAPES, gives_lse=False)
def decode(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    keys = kv_cache[:, :, None]
    out = pagedattention.flash_attn_with_kvcache(
        q.flatten(0, 1), keys, keys[..., :512], seq_lens, block_table, softmax_scale=scale
    )
    return out.view(*q.shape[:3], 512)


@kernel(
    op="mla_decode",
    name="lmdeploy-finite-tail",
    kv=("bf16",),
    shapes=SHAPES,
    gives_lse=False,
    needs_finite_tail=True,
)
def finite_tail(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    return decode(q, kv_cache, block_table, seq_lens, scale=scale)
