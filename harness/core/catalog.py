"""What exists: the four registries of the project. Entries name their code lazily; nothing here imports torch."""

from __future__ import annotations

from harness.core.fault_spec import FaultSpec
from harness.core.faults import FAULT_SPECS, VLLM_FAULTS
from harness.core.kernel_spec import KernelSpec
from harness.core.oracle_spec import OracleSpec
from harness.core.registry import Registry
from harness.core.sites import SITES
from harness.engines.flashinfer.specs import FLASHINFER_KERNELS
from harness.engines.vllm.kernels.specs import VLLM_KERNELS

__all__ = ["FAULTS", "KERNELS", "ORACLES", "SITES"]

TRITON = "harness.memory.triton_interpreter:unavailable"

KERNELS: Registry[KernelSpec] = Registry(
    "kernel",
    (
        KernelSpec(
            "mla_decode",
            "tiled",
            "whole pages, split-KV; selects used slots; leaves empty rows unwritten",
            "harness.kernels.torch.decode:mla_decode",
            windowed=True,
            devices=("cpu", "cuda"),
            cuda_twin="triton-unwritten",
        ),
        KernelSpec(
            "mla_decode",
            "tiled-multiply",
            "as tiled, but multiplies unused values by 0: needs a finite cache",
            "harness.kernels.torch.decode:mla_decode_multiply",
            windowed=True,
            needs_finite_tail=True,
            devices=("cpu", "cuda"),
            cuda_twin="triton-multiply",
        ),
        KernelSpec(
            "mla_decode",
            "tiled-identity",
            "as tiled, but empty rows get the empty attention: out 0, lse -inf",
            "harness.kernels.torch.decode:mla_decode_identity",
            windowed=True,
            empty_rows="identity",
            empty_lse="-inf",
            devices=("cpu", "cuda"),
            cuda_twin="triton",
        ),
        KernelSpec(
            "mla_decode",
            "tiled-prefetch",
            "as tiled, but looks up a page of empty requests too: their table entries must be valid",
            "harness.kernels.torch.decode:mla_decode_prefetch",
            windowed=True,
            needs_valid_table=True,
            devices=("cpu", "cuda"),
            cuda_twin="triton-prefetch",
        ),
        KernelSpec(
            "mla_decode",
            "tiled-counted",
            "as tiled, but in chunks of pages, and combined by the piece that arrives last, by counters that are zero",
            "harness.kernels.torch.decode:mla_decode_counted",
            windowed=True,
            chunked=True,
            counted=True,
        ),
        KernelSpec(
            "mla_decode",
            "triton",
            "split-KV on tensor cores; masked loads; empty rows get out 0, lse -inf",
            "harness.kernels.triton.decode:mla_decode",
            devices=("cuda", "cpu"),
            requires=TRITON,
            empty_rows="identity",
            empty_lse="-inf",
        ),
        KernelSpec(
            "mla_decode",
            "triton-unwritten",
            "as triton, but leaves empty rows unwritten, as FlashMLA does",
            "harness.kernels.triton.decode:mla_decode_unwritten",
            devices=("cuda", "cpu"),
            requires=TRITON,
        ),
        KernelSpec(
            "mla_decode",
            "triton-multiply",
            "as triton, but reads whole pages and multiplies unused values by 0: needs a finite cache",
            "harness.kernels.triton.decode:mla_decode_multiply",
            devices=("cuda", "cpu"),
            requires=TRITON,
            needs_finite_tail=True,
        ),
        KernelSpec(
            "mla_decode",
            "triton-prefetch",
            "as triton, but looks up a page of empty requests too: their table entries must be valid",
            "harness.kernels.triton.decode:mla_decode_prefetch",
            devices=("cuda", "cpu"),
            requires=TRITON,
            needs_valid_table=True,
        ),
        KernelSpec(
            "mla_decode_sparse",
            "gather",
            "one gathered row of slots a token; selects those that are there; leaves rows without any unwritten",
            "harness.kernels.torch.sparse:mla_decode_sparse",
            devices=("cpu", "cuda"),
        ),
        KernelSpec(
            "mla_decode_plan",
            "tiled",
            "at most 4 pieces a request, of equal size in the batch; fixed shapes, made on the device",
            "harness.kernels.torch.plan:mla_decode_plan",
            chunked=True,
            devices=("cpu", "cuda"),
            cuda_twin="triton",
        ),
        KernelSpec(
            "mla_decode_plan",
            "triton",
            "pieces that fill the GPU in whole waves; one launch, fixed shapes",
            "harness.kernels.triton.plan:mla_decode_plan",
            devices=("cuda", "cpu"),
            requires=TRITON,
        ),
        KernelSpec(
            "context_attention",
            "torch",
            "varlen attention; out of rows without keys stays unwritten, their lse is -inf",
            "harness.kernels.torch.context:context_attention",
            empty_lse="-inf",
            devices=("cpu", "cuda"),
        ),
        KernelSpec(
            "context_attention",
            "torch-plus-inf",
            "as torch with FlashAttention-2's convention: the lse of rows without keys is +inf",
            "harness.kernels.torch.context:context_attention_plus_inf",
            empty_lse="+inf",
            devices=("cpu", "cuda"),
        ),
        KernelSpec(
            "context_attention",
            "torch-ragged",
            "as torch, around a backend whose lse is by token and of base 2, converted where it is called",
            "harness.kernels.torch.context:context_attention_ragged",
            empty_lse="-inf",
            devices=("cpu", "cuda"),
        ),
        KernelSpec(
            "merge_attn_states",
            "torch",
            "selects empty sides away; copies tokens without context from the suffix",
            "harness.kernels.torch.merge:merge_attn_states",
            devices=("cpu", "cuda"),
        ),
        KernelSpec(
            "merge_attn_states",
            "triton",
            "selects empty sides away by masked loads; copies tokens without context",
            "harness.kernels.triton.merge:merge_attn_states",
            devices=("cuda", "cpu"),
            requires=TRITON,
        ),
        KernelSpec(
            "write_kv",
            "torch",
            "skips negative slots; fp8 saturates",
            "harness.kernels.torch.write:write_kv",
            devices=("cpu", "cuda"),
            cuda_twin="triton",
        ),
        KernelSpec(
            "write_kv",
            "triton",
            "skips negative slots; fp8 saturates",
            "harness.kernels.triton.write_kv:write_kv",
            devices=("cuda", "cpu"),
            requires=TRITON,
        ),
        KernelSpec(
            "quantize_fp8",
            "torch",
            "one scale a tensor; its maximum propagates NaN",
            "harness.kernels.torch.quantize:quantize_fp8",
            devices=("cpu", "cuda"),
        ),
        KernelSpec(
            "quantize_fp8",
            "torch-fmax",
            "one scale a tensor; its maximum drops NaN, as CUDA's fmaxf does",
            "harness.kernels.torch.quantize:quantize_fp8_fmax",
            devices=("cpu", "cuda"),
        ),
        KernelSpec(
            "quantize_fp8",
            "per-token",
            "one scale a row: a control that no padded row can spoil",
            "harness.kernels.torch.quantize:quantize_fp8_per_token",
            devices=("cpu", "cuda"),
        ),
        KernelSpec(
            "quantize_fp8",
            "triton",
            "one scale a tensor; a maximum of bits, so that NaN is the largest",
            "harness.kernels.triton.quantize:quantize_fp8",
            devices=("cuda", "cpu"),
            requires=TRITON,
        ),
        KernelSpec(
            "route_experts",
            "torch",
            "softmax, top-k, renormalised; int32 ids, distinct for each token",
            "harness.kernels.torch.route:route_experts",
            devices=("cpu", "cuda"),
        ),
        KernelSpec(
            "route_experts",
            "torch-live",
            "as torch, but writes live tokens only, as kernels that are told their number do",
            "harness.kernels.torch.route:route_experts_live",
            live_only=True,
            devices=("cpu", "cuda"),
        ),
        KernelSpec(
            "quantize_blocks",
            "torch",
            "nvfp4, mxfp4 and mxfp8; scales of each expert in tiles of their own, padded with code 0",
            "harness.kernels.torch.blocks:quantize_blocks",
            devices=("cpu", "cuda"),
        ),
        *VLLM_KERNELS,
        *FLASHINFER_KERNELS,
    ),
)

ORACLES: Registry[OracleSpec] = Registry(
    "oracle",
    (
        OracleSpec(
            "finite",
            "live rows hold no NaN and no Inf where the reference is finite",
            "harness.judge.oracles.finite:judge",
        ),
        OracleSpec(
            "sentinel",
            "no sentinel is found verbatim in live rows, and guarded memory is untouched",
            "harness.judge.oracles.sentinel:judge",
        ),
        OracleSpec("reference", "live rows agree with the float64 reference", "harness.judge.oracles.reference:judge"),
        OracleSpec(
            "non_interference",
            "live rows are bitwise equal under two different poisons",
            "harness.judge.oracles.non_interference:judge",
            needs="patterns",
        ),
        OracleSpec(
            "replay",
            "a graph replay equals the same step run eagerly, and its answer moves as its inputs do",
            "harness.judge.oracles.replay:judge",
            needs="graph",
        ),
        OracleSpec(
            "padding",
            "live rows of a captured batch are bitwise equal whatever the number of padded ones",
            "harness.judge.oracles.padding:judge",
            needs="graph",
        ),
        OracleSpec(
            "address",
            "the tensor that a graph captured is the one that the engine updates",
            "harness.judge.oracles.address:judge",
            needs="graph",
        ),
        OracleSpec(
            "cold_warm",
            "a prompt is answered alike whether its prefix was cached or not",
            "harness.judge.oracles.cold_warm:judge",
            needs="warm",
        ),
        OracleSpec(
            "flush",
            "after a flush of all caches the answers are as they were at first",
            "harness.judge.oracles.flush:judge",
            needs="flush",
        ),
        OracleSpec(
            "zeroed",
            "each block that the scheduler says to zero holds zeros before its first read",
            "harness.judge.oracles.zeroed:judge",
            needs="mixed",
        ),
        OracleSpec(
            "distinct_experts",
            "the experts of each token, padding included, are distinct and exist",
            "harness.judge.oracles.distinct_experts:judge",
            needs="experts",
        ),
        OracleSpec(
            "accuracy",
            "in every epoch the canary answers as many questions right as its baseline, and the same ones",
            "harness.judge.oracles.accuracy:judge",
            needs="answers",
        ),
        OracleSpec(
            "answers",
            "in every epoch vLLM answers as many questions right as the canary is known to, with no invalid token",
            "harness.judge.oracles.served_answers:judge",
            needs="answers",
        ),
        OracleSpec(
            "streams",
            "vLLM with graphs generates what it generates without them",
            "harness.judge.oracles.streams:judge",
            needs="graph",
        ),
        OracleSpec(
            "crash",
            "the worker survives: no illegal address, no signal, no exception, no hang",
            "harness.judge.oracles.crash:judge",
        ),
    ),
)

FAULTS: Registry[FaultSpec] = Registry("fault", (*FAULT_SPECS, *VLLM_FAULTS))
