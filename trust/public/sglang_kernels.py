"""Triton kernels of `sglang/kernels/ops` of sglang 0.5.23."""

import types

import sources
import torch

from harness import kernel

sources.stub("sglang.srt.environ", envs=None)
sources.stub(
    "sglang.srt.utils",
    get_device_core_count=lambda device: 8,
    is_gfx95_supported=lambda: False,
    is_gfx1250_supported=lambda: False,
    is_hip=lambda: False,
)
sources.stub("sglang.kernels.ops.quantization.fp8_kernel", is_fp8_fnuz=lambda: False)
sources.stub("sglang.kernels.jit.utils", is_arch_support_pdl=lambda: False)
sources.stub(
    "sglang.kernels.ops.kvcache.set_mla_kv_buffer",
    can_use_set_mla_kv_buffer=None,
    set_mla_kv_buffer=None,
)
sources.stub("sglang.srt.runtime_context", get_parallel=None)
triton_runs = types.SimpleNamespace(capabilities=types.SimpleNamespace(supports_triton=True))
sources.stub("sglang.srt.platforms", current_platform=triton_runs)
decode_attention = sources.load("sglang.kernels.ops.attention.decode_attention")
merge_state = sources.load("sglang.kernels.ops.attention.merge_state")
buffer = sources.load("sglang.kernels.ops.kvcache.mla_buffer")
sparse = sources.load("sglang.kernels.ops.attention.dsa.triton_sparse_mla_decode")
sources.load("sglang.kernels.ops.attention.dsa.triton_sparse_mla").torch = sources.Torch()
SHAPES = {"like": "deepseek", "num_heads": 16}


@kernel(
    op="mla_decode",
    name="sglang",
    style="sglang_decode",
    kv=("bf16",),
    shapes=SHAPES,
    gives_lse=False,
)
def decode(q, keys, values, out, starts, slots, partial, partial_lse, splits, most, scale):
    decode_attention.decode_attention_fwd(
        q, keys, values, out, starts, slots, partial, partial_lse, splits, most, scale, 1.0, 1.0
    )


@kernel(op="merge_attn_states", name="sglang-merge", lse_order="T H")
def merge(prefix_out, prefix_lse, suffix_out, suffix_lse, *, num_tokens_with_context=None):
    # It merges all tokens that it is given: those without context are the caller's.
    count = len(suffix_out) if num_tokens_with_context is None else num_tokens_with_context
    sides = (prefix_out, prefix_lse.T, suffix_out, suffix_lse.T)
    packed = torch.contiguous_format
    out = suffix_out.clone(memory_format=packed)
    lse = suffix_lse.T.clone(memory_format=packed)
    merge_state.merge_state_triton(
        *(one[:count].contiguous() for one in sides), out[:count], lse[:count]
    )
    return out, lse


@kernel(
    op="write_kv",
    name="sglang-write",
    kv=("fp32", "bf16"),
    shapes={"like": "deepseek", "layout": "contiguous"},
)
def write(kv_c, k_pe, kv_cache, slot_mapping, *, kv_scale=None):
    slots = kv_cache.view(-1, 1, kv_cache.shape[-1])
    buffer.set_mla_kv_buffer_triton(
        slots, slot_mapping, kv_c[:, None], k_pe[:, None], reserved_skip_index=-1
    )


@kernel(op="mla_decode_sparse", name="sglang-sparse", kv=("bf16",), shapes=SHAPES, gives_lse=False)
def sparse_decode(q, kv_cache, indices, *, scale, kv_scale=None):
    slots = kv_cache.reshape(-1, 1, 576)
    out = sparse.triton_sparse_mla_decode_splitk(
        q[..., :512], q[..., 512:], slots, indices[:, None], scale, workspace=[]
    )
    return out[0].to(torch.bfloat16)
