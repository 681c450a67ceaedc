"""Shapes: what a kernel accepts, what planning adapts, and what it cannot."""

from __future__ import annotations

from typing import Any

from harness.core.catalog import KERNELS
from harness.core.cause_codes import Code
from harness.core.engine_params import EngineParams
from harness.core.kernels import KernelSpec
from harness.core.op_params import KERNEL_PARAMS
from harness.core.shapes import DEEPSEEK, NAMED, SIZES, Shapes, misfit, sizes_of
from harness.ops.mla_decode.params import MlaDecodeParams
from tests.transcripts import Approved


def spec(shapes: Shapes | None = DEEPSEEK, op: str = "mla_decode", **promises: Any) -> KernelSpec:
    return KernelSpec(
        op, "mine", "a kernel", "nowhere:nothing", shapes=shapes, **{"kv": ("bf16",), **promises}
    )


def test_a_misfit_names_the_size_what_is_accepted_and_what_was_given(approved: Approved) -> None:
    for shapes, sizes in [
        (DEEPSEEK, {"kv_lora_rank": 512, "dtype": "bf16"}),
        (DEEPSEEK, {"kv_lora_rank": 32}),
        (DEEPSEEK, {"dtype": "fp32"}),
        (Shapes(num_heads=(16, 128)), {"num_heads": 4}),
        (Shapes(heads_multiple_of=16), {"num_heads": 24}),
        (Shapes(heads_multiple_of=16), {"num_heads": 48}),
        (Shapes(layout=("contiguous",)), {"layout": "block_major"}),
    ]:
        approved(str(misfit(shapes, sizes) or ""), str(sizes))


def test_a_small_engine_is_resized_to_the_dims_of_deepseek() -> None:
    fitted = spec().fit(EngineParams(), ())
    assert (fitted.kv_lora_rank, fitted.qk_rope_head_dim, fitted.num_heads) == (512, 64, 4)
    heads = Shapes(**{**DEEPSEEK.model_dump(), "num_heads": (16,)})
    assert spec(heads).fit(EngineParams(), ()).num_heads == 16
    context = spec(op="context_attention").fit(EngineParams(), ())
    assert (context.qk_head_dim, context.v_head_dim) == (192, 128)


def test_a_parameter_that_a_case_names_is_not_adapted() -> None:
    params = MlaDecodeParams(kv="fp32", window=40)
    fitted = spec().fit(params, ())
    assert (fitted.kv, fitted.window) == ("bf16", None)
    assert spec().fit(params, ("kv", "window")) is params
    assert spec().why_not_params(params).cause == Code.UNSUPPORTED


def test_pages_that_are_apart_stay_apart_when_they_get_larger() -> None:
    small = MlaDecodeParams(kv_lora_rank=8, qk_rope_head_dim=8, page_stride=64 * 16 + 64)
    assert spec().fit(small, ()).page_stride == 64 * 576 + 64
    far = small.model_copy(update={"page_stride": 2**31})
    assert spec().fit(far, ()).page_stride == 2**31


def test_most_heads_bound_a_call_and_its_adaption(approved: Approved) -> None:
    few = Shapes(most_heads=128)
    assert few.accepts("num_heads", 128)
    approved(str(misfit(few, {"num_heads": 129})))
    assert few.nearest("num_heads", 130) == 128


def test_query_tokens_are_what_a_case_tests_and_stay(approved: Approved) -> None:
    one = Shapes(query_len=(1,))
    params = MlaDecodeParams(query_len=2, seq_lens=(2, 65))
    assert spec(one).fit(params, ()) is params
    approved(str(spec(one).why_not_params(params)))


def test_sizes_that_no_case_can_have_leave_it_as_it_was() -> None:
    odd = Shapes(kv_lora_rank=(96,))
    params = MlaDecodeParams()
    assert spec(odd).fit(params, ()) is params


def test_every_size_of_an_op_is_one_of_shapes_and_of_its_parameters() -> None:
    for op, names in SIZES.items():
        assert set(names) <= set(Shapes.model_fields)
        assert op not in KERNEL_PARAMS or set(sizes_of(op, KERNEL_PARAMS[op]())) <= set(names)
    assert sizes_of("mla_decode", MlaDecodeParams())["dtype"] == "bf16"
    assert sizes_of("mla_decode", MlaDecodeParams(kv="fp32"))["dtype"] == "fp32"


def test_every_kernel_of_the_catalog_declares_its_shapes() -> None:
    assert [entry.name for entry in KERNELS if entry.shapes is None and SIZES[entry.op]] == []
    assert set(NAMED) == {"any", "deepseek", "kimi-linear"}
