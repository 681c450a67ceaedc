"""The table of bounds: how far a kernel may be from the float64 reference, and why.

`ulps` counts units in the last place of `dtype` at the expected element. `floor` is a share of the row's scale (its
root mean square), for elements that cancel to nearly nothing. `relative_l2` bounds the error of each row as a whole;
zeros, negated, permuted or rescaled rows exceed it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from harness.core.registry import Registry


@dataclass(frozen=True, slots=True)
class Bound:
    """The bound of one kind of output. `ulps` or `floor` applies to an element, whichever allows more."""

    name: str
    dtype: torch.dtype
    ulps: float
    floor: float
    relative_l2: float
    summary: str
    """The reason of the bound."""
    least_scale: float = 1e-6
    """The least scale of a row: a row of zeros allows `floor * least_scale`."""


_FP32 = torch.float32
_BF16 = torch.bfloat16
_E4M3 = torch.float8_e4m3fn
_E4M3_TINY = 2.0**-6
"""The smallest normal number of e4m3; below it the spacing no longer shrinks."""
INDEX_SCALE = 0.7
"""The standard deviation of a score of an indexer, which is a sum over X heads of either sign: of unit queries and keys
of width I, rectified products have the mean square I / 2, and weights the variance 1 / (X I). Where heads cancel, or a
row sees one key among hundreds of columns, the error is still that of a sum of this size."""


def _bounds(
    names: str, dtype: torch.dtype, ulps: float, floor: float, relative_l2: float, why: str, least_scale: float = 1e-6
) -> list[Bound]:
    """The same bound under each of the names."""
    return [Bound(name, dtype, ulps, floor, relative_l2, why, least_scale) for name in names.split()]


BOUNDS: Registry[Bound] = Registry("bound", (
    *_bounds(
        "mla_decode.out.fp32 mla_decode_sparse.out.fp32", _FP32, 16, 6e-5, 1e-5,
        "float32 throughout; a score of 576 products is off by about 1e-6, which its softmax weight inherits; "
        "worst seen 7e-6 of the row's scale and 1.2e-6 in L2 on a CPU, 4e-5 of the scale on Hopper, in 4 elements of "
        "10 million",
    ),
    *_bounds(
        "mla_decode.out.bf16 mla_decode_sparse.out.bf16 context_attention.out", _BF16, 2, 0.015, 0.008,
        "sums are float32; the result is rounded to bfloat16 (half an ulp, 2^-9), in many kernels the probabilities "
        "too, which moves elements that cancel by 0.01 of the row's scale; worst seen L2 0.0028",
    ),
    *_bounds(
        "mla_decode.out.fp8_e4m3 mla_decode_sparse.out.fp8_e4m3 mla_decode_sparse.out.fp8_ds_mla merge_attn_states.out",
        _BF16, 1.5, 0.0075, 0.006,
        "float32 throughout, and one rounding of the result to bfloat16; fp8 loss is not in it, as the reference reads "
        "the dequantized cache; worst seen 0.5 ulp, L2 0.0021",
    ),
    *_bounds(
        "mla_decode.lse.fp32 mla_decode.lse.bf16 mla_decode.lse.fp8_e4m3 mla_decode_sparse.lse.fp32 "
        "mla_decode_sparse.lse.bf16 mla_decode_sparse.lse.fp8_e4m3 mla_decode_sparse.lse.fp8_ds_mla "
        "context_attention.lse merge_attn_states.lse",
        _FP32, 16, 6e-6, 6e-6,
        "a logarithm of a float32 sum, so its error is absolute for any cache type: worst seen 1.5e-6 of the row's "
        "scale, approximate exponentials of GPUs 2e-6; one key of a thousand left out moves it by 1e-3",
        least_scale=1.0,
    ),
    # Kernels that keep the partial results of a split request in bfloat16, such as FlashInfer's MLA wrapper.
    *_bounds(
        "mla_decode.out.bf16.partials mla_decode_sparse.out.bf16.partials", _BF16, 3, 0.02, 0.008,
        "as out.bf16, and each partial result of a split request is rounded to bfloat16 before the merge: 2^-9 of a "
        "value that can be several times the row's scale where partials cancel; worst seen on Hopper 0.011",
    ),
    # Kernels that add up probabilities rounded to bfloat16, as tensor cores read them, such as FlashInfer's FA2.
    *_bounds(
        "mla_decode.lse.bf16.sums mla_decode_sparse.lse.bf16.sums", _FP32, 16, 0.0022, 0.002,
        "each probability is rounded to bfloat16 (2^-9) before it is added, so the sum is off by 2^-9 of itself at "
        "most, and its logarithm by 0.00196; worst seen on Hopper 0.0015, for few keys",
        least_scale=1.0,
    ),
    # Kernels that multiply dequantized keys and values rounded to bfloat16, such as Triton MLA decode.
    *_bounds(
        "mla_decode.out.fp8_e4m3.in_bf16 mla_decode_sparse.out.fp8_e4m3.in_bf16 "
        "mla_decode_sparse.out.fp8_ds_mla.in_bf16", _BF16, 4, 0.03, 0.012,
        "beside the rounding of a bfloat16 result: dequantized keys and values are rounded to bfloat16 (2^-9 each), "
        "which the weights inherit; worst simulated 0.006 in L2; worst seen 0.011 of the row's scale",
    ),
    *_bounds(
        "mla_decode.lse.fp8_e4m3.in_bf16 mla_decode_sparse.lse.fp8_e4m3.in_bf16 "
        "mla_decode_sparse.lse.fp8_ds_mla.in_bf16", _FP32, 16, 0.01, 0.004,
        "each dequantized key is rounded to bfloat16 (2^-9), by the same sign for all keys of one of e4m3's eight "
        "mantissas, so a score moves by up to 2^-9 of itself; worst simulated 0.005 of the row's scale, 0.0016 in "
        "L2; worst seen 0.0033",
        least_scale=1.0,
    ),
    # Kernels that multiply e4m3 by e4m3 (FlashMLA FP8) round query and probabilities to it too. The reference reads the
    # dequantized cache, so these bounds leave out the cache's own rounding. An element of e4m3 is off by up to 2^-4 of
    # itself, 0.026 root mean square. A score is a sum of 576 such products under a scale of 576^-0.5, and queries have
    # a standard deviation of 2, so it is off by 0.052 at random. Its weight inherits that, and is rounded by 0.026
    # more: 0.058 of the output at most, as key and value errors do not line up. A row of one head that lies on few keys
    # has few of these errors, and three standard deviations of one are 0.156.
    *_bounds(
        "mla_decode.out.fp8_e4m3.in_fp8 mla_decode_sparse.out.fp8_e4m3.in_fp8", _BF16, 8, 0.6, 0.2,
        "query and probabilities are rounded to e4m3 (2^-4, 0.026 root mean square each), the weights inherit both: "
        "0.047 in L2 for many keys, and in one of 1,000 rows of one head 0.11; worst simulated 0.37 of the row's scale "
        "and 0.157 in L2 of 130,000 rows, worst seen on Hopper 0.28",
    ),
    *_bounds(
        "mla_decode.lse.fp8_e4m3.in_fp8 mla_decode_sparse.lse.fp8_e4m3.in_fp8", _FP32, 16, 0.25, 0.2,
        "the query is rounded to e4m3 (2^-4, 0.026 root mean square), so scores of unit variance are off by 0.026 "
        "at random; worst simulated 0.075 of the row's scale and 0.041 in L2; a row of two heads with one key each is "
        "two scores, worst seen on Hopper 0.16 and 0.12 in L2",
        least_scale=1.0,
    ),
    *_bounds(
        "index_logits.fp32 index_logits.bf16 index_logits.indexer_planar", _FP32, 16, 6e-6, 5e-6,
        "float32 sums of 128 products (exact ones of bfloat16 and e4m3) and of 64 heads, in any order: in sequence "
        "they are off by 9e-8 at random, by 8e-7 at most in 140,000 scores; a row of few keys whose heads cancel has "
        "the error of the heads, see the least scale",
        least_scale=INDEX_SCALE,
    ),
    # Tensor cores of Hopper add products of e4m3 in registers of about 14 bits (DeepSeek-V3, section 3.3.2).
    *_bounds(
        "index_logits.indexer_planar.in_fp8", _FP32, 16, 0.004, 0.002,
        "four groups of 32 products are cut to 2^-13 of their largest, which is at most 8 times a product of unit "
        "variance, so a dot product of 128 is off by 4 * 2^-13 * 8 of 11, 3.5e-4 of itself, in one direction",
        least_scale=INDEX_SCALE,
    ),
    *_bounds("write_kv.fp32", _FP32, 0, 0, 1e-12, "a copy into a cache of its own type: exact"),
    *_bounds("write_kv.bf16", _BF16, 0, 0, 1e-12, "a copy into a cache of its own type: exact"),
    *_bounds(
        "write_kv.fp8_e4m3 quantize_fp8", _E4M3, 0.51, 0, 0.064,
        "one rounding of x / scale to the nearest e4m3: half an ulp and the float32 division before it; in L2 at most "
        "the 1/16 that half an ulp can be",
        least_scale=_E4M3_TINY,
    ),
    *_bounds(
        "write_records.fp8", _BF16, 16.5, 1e-4, 0.04,
        "one rounding to e4m3 with a scale of the writer's choice: 2^-4 of the element, 16 ulps of bfloat16, or below "
        "normal numbers 2^-10 of a scale, which is the block's largest / 448 or the power of two above; the largest of "
        "512 elements is up to 512^0.5 of the row's scale, so 9.9e-5 of it; 0.026 in L2",
    ),
    *_bounds(
        "write_records.indexer", _BF16, 16.5, 5e-5, 0.04,
        "as write_records.fp8, of 128 elements: 4.9e-5 of the row's scale",
    ),
    *_bounds(
        "write_records.nvfp4", _BF16, 2, 0.6, 0.15,
        "one rounding to e2m1 with a scale for 16 elements: up to 1/6 of their largest, which is 3.6 times the row's "
        "scale at most; 0.095 in L2 (PR 50336), and 0.76 with scales of other blocks",
    ),
    *_bounds("write_records.exact", _BF16, 0, 0, 1e-12, "bfloat16 is stored as it is: exact"),
    *_bounds("read_records", _FP32, 2, 0, 2.5e-7, "a product of a code of few bits and one or two float32 scales"),
    *_bounds(
        "read_records.in_bf16", _BF16, 1, 0, 0.004, "the dequantized value is rounded to bfloat16: half an ulp (2^-9)"
    ),
    *_bounds(
        "quantize_fp8.scale", _FP32, 3, 0, 3.5e-7,
        "a maximum, which is exact, and one float32 division by 448, or a product with its reciprocal; worst seen 1.2 "
        "ulps",
    ),
    *_bounds(
        "quantize_blocks", _FP32, 0, 0, 1e-12,
        "bfloat16 inputs and scales of few bits: float32 decides each rounding as float64 does, exactly",
    ),
    *_bounds(
        "route_experts.weights", _FP32, 12, 4e-7, 6e-7,
        "a float32 softmax over the experts and one division; worst seen 3.4 ulps, 2e-7 in L2",
    ),
    *_bounds(
        "engine.logits.fp32", _FP32, 8, 2e-5, 1e-5,
        "a whole forward in float32; worst seen 2.2e-6 of the row's scale and 8e-7 in L2, of two layers; the decode "
        "kernels alone are 4e-5 off at single elements on Hopper",
    ),
    *_bounds(
        "engine.logits.bf16", _BF16, 3, 0.024, 0.009,
        "a float32 forward over a bfloat16 cache; worst seen 0.008 of the row's scale and 0.003 in L2",
    ),
    *_bounds(
        "engine.logits.fp8_e4m3", _BF16, 8, 0.35, 0.12,
        "against an unquantized reference: each cached value is off by up to 1/16, attention averages them; worst seen "
        "0.13 of the row's scale and 0.04 in L2",
    ),
    *_bounds(
        "engine.logits.fp32.fp8act engine.logits.bf16.fp8act engine.logits.fp8_e4m3.fp8act", _BF16, 8, 0.6, 0.2,
        "against an unquantized reference: activations are rounded to e4m3 (up to 1/16 each) before every projection, "
        "the cache perhaps too; worst seen 0.25 of the row's scale and 0.073 in L2, of two layers and of experts",
    ),
))  # fmt: skip


def bound(name: str) -> Bound:
    """The bound called `name`. Raises UnknownNameError with the nearest name."""
    return BOUNDS.get(name)
