"""Triton kernels of `aiter/ops/triton` of amd-aiter 0.1.7.post2.dev18."""

import sources
import torch

from harness import kernel


class Quiet:
    """Its logger, which logs nothing."""

    def info(self, text):
        pass


sources.stub("aiter.ops.triton.utils.logger", AiterTritonLogger=Quiet)
sources.stub("aiter.ops.triton.utils._triton.arch_info", get_device=lambda: "MI300X")
sources.stub("aiter.ops.triton.utils.core", AITER_TRITON_CONFIGS_PATH="")
decode_rope = sources.load("aiter.ops.triton.mla_decode_rope")
sparse = sources.load("aiter.ops.triton.unified_attention_sparse_mla")
SHAPES = {"like": "deepseek", "num_heads": 16}


@kernel(
    op="mla_decode",
    name="aiter",
    style="sglang_decode",
    kv=("bf16",),
    shapes=SHAPES,
    gives_lse=False,
)
def decode(q, keys, values, out, starts, slots, partial, partial_lse, splits, most, scale):
    # Its partial results have the lse in a column of their own.
    logits = torch.empty(*partial.shape[:3], 513, device=q.device)
    tile = {"BLOCK_N": 16, "BLOCK_H": 16, "num_warps": 4, "num_stages": 1}
    config = {
        "fwd_grouped_kernel_stage1_rope": tile,
        "fwd_kernel_stage2": {"num_warps": 4, "num_stages": 1},
    }
    decode_rope.decode_attention_fwd_grouped_rope(
        *(q, keys, values, out, starts, slots),
        k_pe_tokens=None,
        kv_lora_rank=512,
        rotary_dim=64,
        cos_sin_cache=None,
        positions=None,
        attn_logits=logits,
        num_kv_splits=most,
        sm_scale=scale,
        config=config,
    )


@kernel(op="mla_decode_sparse", name="aiter-sparse", kv=("bf16",), shapes=SHAPES, gives_lse=False)
def sparse_decode(q, kv_cache, indices, *, scale, kv_scale=None):
    out = torch.empty(*q.shape[:2], 512, dtype=q.dtype, device=q.device)
    # Each token is a request. The kernel reads no length and no table.
    starts = torch.arange(len(q) + 1, dtype=torch.int32, device=q.device)
    lengths = torch.full((len(q),), indices.shape[1], dtype=torch.int32, device=q.device)
    sparse.unified_attention_sparse_mla(
        q, kv_cache[:, :, None], out, starts, 1, lengths, 0, scale, indices, indices, 512
    )
    return out
