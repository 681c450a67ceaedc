"""`lmdeploy/pytorch/kernels/cuda/pagedattention.py` of lmdeploy 0.18.0. It runs on a GPU: Triton's
interpreter refuses one of its calls.
"""

import enum
import logging

import sources

from harness import kernel

POLICIES = {"NONE": 0, "INT4": 4, "INT8": 8, "FP8": 16, "FP8_E5M2": 17, "TURBO_QUANT": 42}
DEVICE = {
    "compute_capability": (8, 0),
    "multi_processor_count": 8,
    "warps_per_sm": 64,
    "blocks_per_sm": 32,
}
sources.stub("lmdeploy.messages", QuantPolicy=enum.IntEnum("QuantPolicy", POLICIES))
sources.stub("lmdeploy.utils", get_logger=logging.getLogger)
sources.stub("lmdeploy.pytorch.kernels.cuda.turbo_quant", hadamard_rotate=None)
sources.stub(
    "lmdeploy.pytorch.kernels.cuda.utils",
    is_cuda=lambda: False,
    get_device_props=lambda index: DEVICE,
)
pagedattention = sources.load("lmdeploy.pytorch.kernels.cuda.pagedattention")

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
