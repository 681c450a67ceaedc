"""What FlashInfer adds to the catalog: its MLA wrapper with FA2 and FA3, over bfloat16 pages."""

from __future__ import annotations

from harness.core.kernels import KernelSpec
from harness.core.shapes import DEEPSEEK
from harness.core.systems import EngineSpec

ENGINE = EngineSpec("flashinfer", "FlashInfer", distribution="flashinfer-python", package="flashinfer")

_HERE = "harness.engines.flashinfer.mla:"

KERNELS: tuple[KernelSpec, ...] = (
    KernelSpec("mla_decode", "flashinfer-fa2", "BatchMLAPagedAttentionWrapper, FA2", _HERE + "mla_decode_fa2",
               kv=("bf16",), shapes=DEEPSEEK, devices=("cuda",), origin="flashinfer", capturable=False,
               bf16_steps=("partials", "sums"),
               requires=_HERE + "on_ampere"),
    KernelSpec("mla_decode", "flashinfer-fa3", "BatchMLAPagedAttentionWrapper, FA3", _HERE + "mla_decode_fa3",
               kv=("bf16",), shapes=DEEPSEEK, devices=("cuda",), origin="flashinfer", capturable=False,
               bf16_steps=("partials",),
               requires=_HERE + "on_hopper"),
)  # fmt: skip
