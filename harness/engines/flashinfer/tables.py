"""What FlashInfer adds to the catalog: its MLA wrapper with FA2 and FA3, over bfloat16 pages, and a reader of NVFP4."""

from __future__ import annotations

from harness.core.kernels import KernelSpec
from harness.core.shapes import DEEPSEEK
from harness.core.systems import EngineSpec

ENGINE = EngineSpec(
    "flashinfer",
    "FlashInfer",
    distribution="flashinfer-python",
    package="flashinfer",
    slow_modules=("flashinfer.mla",),
)

_HERE, _RECORDS = "harness.engines.flashinfer.mla:", "harness.engines.flashinfer.records:"

KERNELS: tuple[KernelSpec, ...] = (
    KernelSpec("mla_decode", "flashinfer-fa2", "BatchMLAPagedAttentionWrapper, FA2", _HERE + "mla_decode_fa2",
               kv=("bf16",), shapes=DEEPSEEK, devices=("cuda",), origin="flashinfer", capturable=False,
               compile_seconds=120.0, bf16_steps=("partials", "sums"), requires=_HERE + "on_ampere"),
    KernelSpec("mla_decode", "flashinfer-fa3", "BatchMLAPagedAttentionWrapper, FA3", _HERE + "mla_decode_fa3",
               kv=("bf16",), shapes=DEEPSEEK, devices=("cuda",), origin="flashinfer", capturable=False,
               compile_seconds=120.0, bf16_steps=("partials",), requires=_HERE + "on_hopper"),
    KernelSpec("read_records", "flashinfer-nvfp4", "nvfp4_kv_dequantize_paged, the side of the keys",
               _RECORDS + "read_nvfp4", kv=("nvfp4_linear",), devices=("cuda",), origin="flashinfer",
               fp8_products="bf16", requires=_RECORDS + "on_ampere_since_0_6_16"),
)  # fmt: skip
