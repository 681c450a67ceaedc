"""The one table of bounds: how far a kernel may be from the float64 reference, and why.

`ulps` counts units in the last place of `dtype` at the expected element; `floor` is a share of the row's scale
(its root mean square) for elements that cancel to nearly nothing; `relative_l2` bounds the error of each row as a
whole, which zeros, negated, permuted or rescaled rows cannot keep.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from harness.core.registry import Registry


@dataclass(frozen=True, slots=True)
class Bound:
    """How far one kind of output may be off; an element may use `ulps` or `floor`, whichever allows more."""

    name: str
    dtype: torch.dtype
    ulps: float
    floor: float
    relative_l2: float
    why: str
    least_scale: float = 1e-6
    """The scale a row has at least, so that a row of zeros allows `floor * least_scale` and no more."""

    @property
    def summary(self) -> str:
        """The reason of the bound, as every registry entry has a sentence."""
        return self.why


_FP32 = torch.float32
_BF16 = torch.bfloat16
_E4M3 = torch.float8_e4m3fn
_DECODES = ("mla_decode", "mla_decode_sparse")
_E4M3_TINY = 2.0**-6
"""The smallest normal number of e4m3; below it the spacing no longer shrinks."""


def _fp32_attention(name: str) -> Bound:
    why = (
        "float32 throughout; a score of 576 products is off by about 1e-6, which its softmax weight inherits; "
        "worst seen 7e-6 of the row's scale and 1.2e-6 in L2"
    )
    return Bound(name, _FP32, ulps=16, floor=3e-5, relative_l2=1e-5, why=why)


def _bf16_attention(name: str) -> Bound:
    why = (
        "sums are float32; the result is rounded to bfloat16 (half an ulp, 2^-9), in many kernels the probabilities "
        "too; fp8 loss is not in it, as the reference reads the dequantized cache; worst seen 0.5 ulp, L2 0.0019"
    )
    return Bound(name, _BF16, ulps=2, floor=0.01, relative_l2=0.008, why=why)


def _lse(name: str) -> Bound:
    why = (
        "a logarithm of a float32 sum, so its error is absolute whatever the cache type: worst seen 2e-7, approximate "
        "exponentials of GPUs 2e-6; one key of a thousand left out moves it by 1e-3, a base-2 logarithm by much more"
    )
    return Bound(name, _FP32, ulps=16, floor=2e-5, relative_l2=1e-5, why=why, least_scale=1.0)


def _bf16_partials(op: str) -> Bound:
    """For kernels that keep the partial results of a split request in bfloat16 (FlashInfer's MLA wrapper)."""
    why = (
        f"as {op}.out.bf16, and each partial result of a split request is rounded to bfloat16 before the merge: "
        "2^-9 of a value that can be several times the row's scale where partials cancel; worst seen on Hopper 0.011"
    )
    return Bound(f"{op}.out.bf16.partials", _BF16, ulps=3, floor=0.02, relative_l2=0.008, why=why)


def _bf16_sums(op: str) -> Bound:
    """For kernels that add up probabilities rounded to bfloat16, as the tensor cores read them (FlashInfer's FA2)."""
    why = (
        "each probability is rounded to bfloat16 (2^-9) before it is added, so the sum is off by 2^-9 of itself at "
        "most, and its logarithm by 0.00196; worst seen on Hopper 0.0015, for few keys"
    )
    return Bound(f"{op}.lse.bf16.sums", _FP32, ulps=16, floor=0.0022, relative_l2=0.002, why=why, least_scale=1.0)


def _fp8_cache_in_bf16(op: str, output: str) -> Bound:
    """For kernels that multiply dequantized keys and values rounded to bfloat16, as Triton MLA decode does."""
    name = f"{op}.{output}.fp8_e4m3.in_bf16"
    if output == "lse":
        why = (
            "each dequantized key is rounded to bfloat16 (2^-9), by the same sign for all keys of one of e4m3's eight "
            "mantissas, so a score moves by up to 2^-9 of itself; worst simulated 0.005 of the row's scale, 0.0016 in "
            "L2; worst seen 0.0033"
        )
        return Bound(name, _FP32, ulps=16, floor=0.01, relative_l2=0.004, why=why, least_scale=1.0)
    why = (
        "beside the rounding of a bfloat16 result: dequantized keys and values are rounded to bfloat16 (2^-9 each), "
        "which the weights inherit; worst simulated 0.006 in L2; worst seen 0.011 of the row's scale"
    )
    return Bound(name, _BF16, ulps=4, floor=0.03, relative_l2=0.012, why=why)


def _fp8_cache_in_fp8(op: str, output: str) -> Bound:
    """For kernels that multiply e4m3 by e4m3 (FlashMLA FP8): query and probabilities are rounded to it, too.

    The reference reads the dequantized cache, so the cache's own rounding is not in these bounds. An element of e4m3
    is off by up to 2^-4 of itself, 0.026 root mean square. A score is a sum of 576 such products under a scale of
    576^-0.5, so for inputs of unit variance it is off by 0.026 at random; its weight inherits that, and is itself
    rounded by 0.026 more: 0.037 of the output, as key and value errors do not line up.
    """
    name = f"{op}.{output}.fp8_e4m3.in_fp8"
    if output == "lse":
        why = (
            "the query is rounded to e4m3 (2^-4, 0.026 root mean square), so scores of unit variance are off by 0.026 "
            "at random; worst simulated 0.075 of the row's scale and 0.041 in L2, worst seen on Hopper 0.058"
        )
        return Bound(name, _FP32, ulps=16, floor=0.15, relative_l2=0.08, why=why, least_scale=1.0)
    why = (
        "query and probabilities are rounded to e4m3 (2^-4, 0.026 root mean square each), the weights inherit both: "
        "0.037 in L2 for many keys; worst simulated 0.37 of the row's scale and 0.054 in L2, worst seen on Hopper 0.28"
    )
    return Bound(name, _BF16, ulps=8, floor=0.6, relative_l2=0.1, why=why)


def _copy(name: str, dtype: torch.dtype) -> Bound:
    return Bound(name, dtype, ulps=0, floor=0, relative_l2=1e-12, why="a copy into a cache of its own type: exact")


def _e4m3_rounding(name: str, what: str) -> Bound:
    why = f"{what}: half an ulp and the float32 division before it; in L2 at most the 1/16 that half an ulp can be"
    return Bound(name, _E4M3, ulps=0.51, floor=0, relative_l2=0.064, why=why, least_scale=_E4M3_TINY)


def _fp8_activations(name: str) -> Bound:
    why = (
        "against an unquantized reference: activations are rounded to e4m3 (up to 1/16 each) before every projection, "
        "the cache perhaps too; worst seen 0.25 of the row's scale and 0.073 in L2, of two layers and of experts"
    )
    return Bound(name, _BF16, ulps=8, floor=0.6, relative_l2=0.2, why=why)


BOUNDS: Registry[Bound] = Registry(
    "bound",
    (
        _fp32_attention("mla_decode.out.fp32"),
        _bf16_attention("mla_decode.out.bf16"),
        _bf16_attention("mla_decode.out.fp8_e4m3"),
        _fp32_attention("mla_decode_sparse.out.fp32"),
        _bf16_attention("mla_decode_sparse.out.bf16"),
        _bf16_attention("mla_decode_sparse.out.fp8_e4m3"),
        _lse("mla_decode_sparse.lse.fp32"),
        _lse("mla_decode_sparse.lse.bf16"),
        _lse("mla_decode_sparse.lse.fp8_e4m3"),
        _lse("mla_decode.lse.fp32"),
        _lse("mla_decode.lse.bf16"),
        _lse("mla_decode.lse.fp8_e4m3"),
        *(made(op) for op in _DECODES for made in (_bf16_partials, _bf16_sums)),
        *(made(op, output) for op in _DECODES for made in (_fp8_cache_in_bf16, _fp8_cache_in_fp8)
          for output in ("out", "lse")),
        _bf16_attention("context_attention.out"),
        _lse("context_attention.lse"),
        _bf16_attention("merge_attn_states.out"),
        _lse("merge_attn_states.lse"),
        _copy("write_kv.fp32", _FP32),
        _copy("write_kv.bf16", _BF16),
        _e4m3_rounding("write_kv.fp8_e4m3", "one rounding of x / kv_scale to the nearest e4m3"),
        _e4m3_rounding("quantize_fp8", "one rounding of x / scale to the nearest e4m3"),
        Bound(
            "quantize_fp8.scale", _FP32, ulps=4, floor=0, relative_l2=1e-6,
            why="a maximum, which is exact, and one float32 division by 448; worst seen 0.43 ulp",
        ),
        Bound(
            "quantize_blocks", _FP32, ulps=0, floor=0, relative_l2=1e-12,
            why="bfloat16 inputs and scales of few bits: float32 decides each rounding as float64 does, exactly",
        ),
        Bound(
            "route_experts.weights", _FP32, ulps=32, floor=1e-6, relative_l2=1e-6,
            why="a float32 softmax over the experts and one division; worst seen 3 ulps",
        ),
        Bound(
            "engine.logits.fp32", _FP32, ulps=16, floor=4e-5, relative_l2=2e-5,
            why="a whole forward in float32; worst seen 2.1e-6 of the row's scale and 8e-7 in L2, of two layers",
        ),
        Bound(
            "engine.logits.bf16", _BF16, ulps=4, floor=0.03, relative_l2=0.012,
            why="a float32 forward over a bfloat16 cache; worst seen 0.008 of the row's scale and 0.0026 in L2",
        ),
        Bound(
            "engine.logits.fp8_e4m3", _BF16, ulps=8, floor=0.35, relative_l2=0.12,
            why="against an unquantized reference: each cached value is off by up to 1/16, attention averages them; "
            "worst seen 0.13 of the row's scale and 0.04 in L2",
        ),
        _fp8_activations("engine.logits.fp32.fp8act"),
        _fp8_activations("engine.logits.bf16.fp8act"),
        _fp8_activations("engine.logits.fp8_e4m3.fp8act"),
    ),
)  # fmt: skip


def bound(name: str) -> Bound:
    """The bound called `name`. Raises UnknownNameError with the nearest name."""
    return BOUNDS.get(name)
