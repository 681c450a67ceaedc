"""What vLLM's kernels declare: op, cache types, where they run, and the contracts that they are known to have."""

from __future__ import annotations

from harness.core.kernel_spec import KernelSpec

_SUPPORT = "harness.engines.vllm.kernels.support:"
_FLASHMLA = "harness.engines.vllm.kernels.flashmla:"
_BLACKWELL = "harness.engines.vllm.kernels.blackwell:"


def _vllm(op: str, name: str, summary: str, impl: str, requires: str, **promises: object) -> KernelSpec:
    fields: dict[str, object] = {"kv": ("bf16",), "devices": ("cuda",), "origin": "vllm", **promises}
    return KernelSpec(op, name, summary, impl, requires=_SUPPORT + requires, **fields)  # type: ignore[arg-type]


VLLM_KERNELS: tuple[KernelSpec, ...] = (
    _vllm("mla_decode", "vllm-flashmla", "FlashMLA dense over bf16 pages",
          _FLASHMLA + "mla_decode", "on_hopper", needs_finite_tail=True),
    _vllm("mla_decode_plan", "vllm-flashmla", "lazy: the first decode call plans",
          _FLASHMLA + "mla_decode_plan", "on_hopper"),
    _vllm("mla_decode", "vllm-flashmla-fp8", "FlashMLA dense over e4m3 pages, query quantized too",
          _FLASHMLA + "mla_decode_fp8", "on_hopper", kv=("fp8_e4m3",), fp8_products="fp8", needs_finite_tail=True,
          needs_valid_table=True),
    _vllm("mla_decode_plan", "vllm-flashmla-fp8", "planned on the device in each step",
          _FLASHMLA + "mla_decode_plan_fp8", "on_hopper"),
    _vllm("mla_decode", "vllm-flashmla-sparse", "FlashMLA sparse over bf16 pages, asked for every token",
          _FLASHMLA + "mla_decode_sparse", "on_hopper_or_blackwell"),
    _vllm("mla_decode", "vllm-fa3", "FlashAttention-3 with the latent as value (q_v)",
          "harness.engines.vllm.kernels.flash_attention:mla_decode", "on_hopper", needs_finite_tail=True),
    _vllm("context_attention", "vllm-fa3", "FlashAttention-3 varlen, as chunked prefill calls it",
          "harness.engines.vllm.kernels.flash_attention:context_attention", "on_hopper"),
    _vllm("mla_decode", "vllm-triton", "split-KV; masked loads; empty rows are 0/0",
          "harness.engines.vllm.kernels.triton:mla_decode", "on_any", kv=("bf16", "fp8_e4m3"), fp8_products="bf16",
          empty_rows="nan"),
    _vllm("merge_attn_states", "vllm-cuda", "vllm._custom_ops.merge_attn_states",
          "harness.engines.vllm.kernels.merge:merge_attn_states", "on_any"),
    _vllm("merge_attn_states", "vllm-triton", "the stand-in for head sizes and types that the CUDA kernel lacks",
          "harness.engines.vllm.kernels.merge:merge_attn_states_triton", "on_any"),
    _vllm("write_kv", "vllm-cuda", "concat_and_cache_mla",
          "harness.engines.vllm.kernels.write_kv:write_kv", "on_any", kv=("bf16", "fp8_e4m3")),
    _vllm("mla_decode", "vllm-cutlass", "CUTLASS MLA; leaves empty rows unwritten",
          _BLACKWELL + "cutlass_mla_decode", "on_blackwell", kv=("bf16", "fp8_e4m3")),
    _vllm("mla_decode", "vllm-flashinfer", "FlashInfer's TRT-LLM-gen MLA decode",
          _BLACKWELL + "flashinfer_mla_decode", "on_blackwell", kv=("bf16", "fp8_e4m3")),
    _vllm("context_attention", "vllm-trtllm-ragged", "TRT-LLM ragged prefill; writes only tokens with context",
          _BLACKWELL + "trtllm_ragged_context_attention", "on_blackwell"),
)  # fmt: skip
