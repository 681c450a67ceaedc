"""The Triton kernels keep their contracts under every poison.

Run by test_triton.py under TRITON_INTERPRET=1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from harness.core.errors import IllegalAddress
from harness.core.findings import Finding
from harness.ops.merge_attn_states.kernels import dense as torch_merge
from harness.ops.merge_attn_states.kernels.triton import merge_attn_states
from harness.ops.mla_decode import reference as mla_decode_reference
from harness.ops.mla_decode.kernels.triton import mla_decode
from harness.ops.mla_decode.kernels.triton_code import INTERPRETED
from harness.ops.mla_decode_plan.kernels import tiled as torch_plan
from harness.ops.mla_decode_plan.kernels.triton import mla_decode_plan
from harness.ops.quantize_fp8.kernels import dense as torch_quantize
from harness.ops.quantize_fp8.kernels.triton import quantize_fp8
from harness.ops.write_kv.kernels import by_slot as torch_write
from harness.ops.write_kv.kernels.triton import write_kv

assert INTERPRETED, "set TRITON_INTERPRET=1"

Judge = Callable[..., list[Finding]]
SMALL: dict[str, Any] = {
    "kernel": "triton",
    "num_heads": 3,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
}
E4M3 = torch.float8_e4m3fn


@pytest.mark.parametrize(
    "kv", ["bf16", *(pytest.param(kv, marks=pytest.mark.nightly) for kv in ("fp32", "fp8_e4m3"))]
)
@pytest.mark.parametrize("planned", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_decode_is_right_at_the_edges_of_pages_with_empty_rows_between(
    judge: Judge, kv: str, planned: bool
) -> None:
    lengths = [0, 1, 63, 64, 0, 65, 130]
    assert not judge(
        "mla_decode", kv=kv, seq_lens=lengths, planned=planned, patterns=("nan", "max"), **SMALL
    )


@pytest.mark.parametrize("kv", [pytest.param("bf16", marks=pytest.mark.nightly), "fp8_e4m3"])
def test_decode_is_right_at_the_sizes_of_deepseek(judge: Judge, kv: str) -> None:
    assert not judge(
        "mla_decode", kernel="triton", kv=kv, seq_lens=[1, 65, 0], patterns=("nan", "max")
    )


@pytest.mark.nightly
@pytest.mark.parametrize("query_len", [2, 5])
def test_decode_is_causal_over_the_last_query_tokens(judge: Judge, query_len: int) -> None:
    lengths = [query_len, query_len + 1, 64, 66, 130, 0]
    given = {**SMALL, "patterns": ("nan", "max"), "query_len": query_len}
    assert not judge("mla_decode", kv="fp32", seq_lens=lengths, **given)


@pytest.mark.nightly
def test_decode_is_clean_under_infinite_and_random_poison(judge: Judge) -> None:
    assert not judge("mla_decode", seq_lens=[1, 65, 0], patterns=("inf", "random", "nan"), **SMALL)


def test_decode_survives_tables_padded_with_addresses_that_do_not_exist(judge: Judge) -> None:
    assert not judge(
        "mla_decode", seq_lens=[0, 64, 65], strict=True, patterns=("nan", "max"), **SMALL
    )


@pytest.mark.parametrize(
    "layout",
    [
        "block_major",
        pytest.param("padded_pages", marks=pytest.mark.nightly),
        pytest.param("manager_blocks", marks=pytest.mark.nightly),
        pytest.param("large", marks=pytest.mark.nightly),
    ],
)
@pytest.mark.parametrize("kv", [pytest.param("bf16", marks=pytest.mark.nightly), "fp8_e4m3"])
def test_decode_is_right_in_every_layout_of_the_cache(judge: Judge, layout: str, kv: str) -> None:
    kernels = ("triton", "triton-unwritten", "triton-multiply", "triton-prefetch")
    for kernel in kernels if kv == "bf16" else kernels[:1]:
        given = {**SMALL, "kernel": kernel}
        assert not judge(
            "mla_decode",
            kv=kv,
            layout=layout,
            seq_lens=[0, 65, 130],
            patterns=("nan", "max"),
            **given,
        )


@pytest.mark.parametrize("layout", ["block_major", "padded_pages", "large"])
@pytest.mark.parametrize(
    "kv", [*(pytest.param(kv, marks=pytest.mark.nightly) for kv in ("fp32", "bf16")), "fp8_e4m3"]
)
def test_latents_are_stored_right_in_every_layout_of_the_cache(
    judge: Judge, layout: str, kv: str
) -> None:
    sizes = {"num_tokens": 40, "kv_lora_rank": 32, "qk_rope_head_dim": 16}
    assert not judge("write_kv", kernel="triton", kv=kv, layout=layout, **sizes)


@pytest.mark.parametrize("op", ["merge_attn_states", "write_kv", "quantize_fp8"])
def test_the_other_kernels_are_clean_under_every_poison(judge: Judge, op: str) -> None:
    assert not judge(op, kernel="triton")


@pytest.mark.parametrize("empty_lse", ["-inf", "+inf"])
def test_merge_selects_empty_sides_of_both_conventions_away(judge: Judge, empty_lse: str) -> None:
    assert not judge("merge_attn_states", kernel="triton", empty_prefix_rows=3, empty_lse=empty_lse)


def _decode_case(
    lengths: list[int],
    dtype: torch.dtype = torch.bfloat16,
    *,
    query_len: int = 1,
    query_dtype: torch.dtype = torch.bfloat16,
) -> dict[str, Any]:
    """Requests with pages in random order; everything but live slots is NaN, padded table entries
    are -1.
    """
    generator = torch.Generator().manual_seed(len(lengths))
    pages = [(n + 63) // 64 for n in lengths]
    order = torch.randperm(sum(pages) + 2, generator=generator)
    table = torch.full((len(lengths), max(pages) + 1), -1, dtype=torch.int32)
    cache = torch.full((sum(pages) + 2, 64, 48), float("nan"))
    taken = 0
    for b, length in enumerate(lengths):
        for page in range(pages[b]):
            block, taken = int(order[taken]), taken + 1
            table[b, page] = block
            live = min(64, length - page * 64)
            cache[block, :live] = torch.randn(live, 48, generator=generator)
    return {
        "q": torch.randn(len(lengths), query_len, 4, 48, generator=generator).to(query_dtype),
        "kv_cache": cache.to(dtype),
        "block_table": table,
        "seq_lens": torch.tensor(lengths, dtype=torch.int32),
        "scale": 0.2,
    }


def test_decode_writes_the_identity_into_rows_without_keys() -> None:
    case = _decode_case([0, 1, 70], query_len=2)
    out, lse = mla_decode(**case)
    # The first query token of a request of one token has no key either.
    for row in ((0, 0), (0, 1), (1, 0)):
        assert torch.equal(out[row], torch.zeros_like(out[row]))
        assert bool((lse[row[0], :, row[1]] == -float("inf")).all())
    assert bool(out[1, 1].isfinite().all()) and bool(out[2].isfinite().all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, E4M3], ids=str)
def test_a_nan_in_a_live_slot_is_not_hidden(dtype: torch.dtype) -> None:
    case = _decode_case([70, 70], dtype)
    raw = case["kv_cache"].view(torch.uint8)
    size = case["kv_cache"].element_size()
    raw[int(case["block_table"][0, 1]), 3, 7 * size : 8 * size] = torch.tensor(
        [0xC0, 0x7F] if size == 2 else [0x7F]
    )
    out, lse = mla_decode(**case)
    assert out[0].isnan().all() and lse[0].isnan().all()
    assert out[1].isfinite().all() and lse[1].isfinite().all()


def test_a_scale_on_the_device_gives_the_bits_of_the_same_float() -> None:
    case = _decode_case([70, 5], E4M3)
    by_float = mla_decode(**case, kv_scale=0.25)
    by_tensor = mla_decode(**case, kv_scale=torch.tensor([0.25]))
    assert torch.equal(by_float[0], by_tensor[0]) and torch.equal(by_float[1], by_tensor[1])


def test_float32_queries_over_any_cache_are_computed_in_float32() -> None:
    for dtype in (torch.float32, E4M3):
        case = _decode_case([70, 5], dtype, query_dtype=torch.float32)
        out, lse = mla_decode(**case)
        expected = mla_decode_reference.expected(**case)
        assert float((out.flatten(0, 1) - expected.out).norm() / expected.out.norm()) < 1e-6
        assert float((lse.transpose(1, 2).flatten(0, 1) - expected.lse).abs().max()) < 1e-5


@pytest.mark.parametrize("magnitude", [1e-5, 3e6])
def test_queries_outside_the_range_of_float16_are_right_over_an_fp8_cache(magnitude: float) -> None:
    case = _decode_case([70, 5], E4M3)
    case["q"], case["scale"] = case["q"] * magnitude, 0.2 / magnitude
    out, _ = mla_decode(**case)
    expected = mla_decode_reference.expected(**case)
    assert float((out.flatten(0, 1) - expected.out).norm() / expected.out.norm()) < 5e-3


@pytest.mark.parametrize("lengths", [[0], [1], [4096], [5, 700, 0, 64, 65, 4000], [65] * 9])
def test_a_plan_covers_each_page_once_in_order(lengths: list[int]) -> None:
    plan = mla_decode_plan(torch.tensor(lengths, dtype=torch.int32), num_heads=16)
    items = plan.work.view(len(lengths), -1, 3)
    for b, length in enumerate(lengths):
        used = items[b][items[b, :, 1] < items[b, :, 2]]
        pages = [page for _, begin, end in used.tolist() for page in range(begin, end)]
        assert pages == list(range((length + 63) // 64))
        assert int(plan.num_splits[b]) == len(used)
        assert bool((items[b, :, 0] == b).all())
    unused = plan.work[plan.work[:, 1] >= plan.work[:, 2]]
    assert not unused[:, 1:].any()


def test_a_plan_has_the_shape_of_its_batch_whatever_the_lengths() -> None:
    shapes = {
        tuple(mla_decode_plan(torch.tensor([n, 3, 0], dtype=torch.int32), num_heads=16).work.shape)
        for n in (0, 64, 9000)
    }
    assert len(shapes) == 1


def test_a_plan_made_in_torch_serves_as_well() -> None:
    case = _decode_case([70, 700, 0, 64])
    ours, _ = mla_decode(**case)
    theirs, _ = mla_decode(
        **case, metadata=torch_plan.mla_decode_plan(case["seq_lens"], num_heads=4)
    )
    assert float((ours.double() - theirs.double()).norm() / ours.double().norm()) < 2e-3


def test_a_plan_for_shorter_requests_leaves_out_their_later_pages() -> None:
    case = _decode_case([70, 700])
    stale = mla_decode_plan(torch.tensor([70, 64], dtype=torch.int32), num_heads=4)
    out, _ = mla_decode(**case, metadata=stale)
    fresh, _ = mla_decode(**case)
    error = (out.double() - fresh.double()).flatten(1).norm(dim=1) / fresh.double().flatten(1).norm(
        dim=1
    )
    assert float(error[0]) < 2e-3 and float(error[1]) > 0.1


def test_a_plan_for_longer_requests_is_clipped_to_the_lengths() -> None:
    case = _decode_case([70, 5])
    longer = mla_decode_plan(torch.tensor([700, 640], dtype=torch.int32), num_heads=4)
    out, _ = mla_decode(**case, metadata=longer)
    fresh, _ = mla_decode(**case)
    assert float((out.double() - fresh.double()).norm() / fresh.double().norm()) < 2e-3


def test_a_page_that_does_not_exist_is_an_illegal_address() -> None:
    case = _decode_case([70, 5])
    case["block_table"][0, 1] = 99
    with pytest.raises(IllegalAddress, match="block_table"):
        mla_decode(**case)
    with pytest.raises(IllegalAddress, match="slot_mapping"):
        write_kv(torch.ones(1, 32), torch.ones(1, 16), torch.zeros(2, 64, 48), torch.tensor([128]))


def test_decode_reads_a_cache_that_is_a_view_with_gaps() -> None:
    case = _decode_case([70, 130])
    expected, _ = mla_decode(**case)
    cache = case["kv_cache"]
    pool = torch.full((cache.shape[0], 80, 56), float("nan"), dtype=cache.dtype)
    case["kv_cache"] = pool[:, 8:72, :48]
    case["kv_cache"].copy_(cache)
    out, _ = mla_decode(**case)
    assert torch.equal(out, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, E4M3], ids=str)
def test_write_kv_leaves_the_bytes_that_torch_leaves(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(2)
    kv_c, k_pe = (
        torch.randn(9, 32, generator=generator) * 300,
        torch.randn(9, 24, generator=generator)[:, :16],
    )
    kv_c[1, 3] = float("nan")
    kv_c[4] = float("nan")
    slots = torch.tensor([5, 64, -1, 70, -7, 191, 0, 3, -1])
    ours = torch.zeros(3, 64, 56, dtype=dtype)
    theirs = ours.clone()
    for kv_scale in (0.5, torch.tensor([0.5])):
        write_kv(kv_c, k_pe, ours[..., :48], slots, kv_scale=kv_scale)
        torch_write.write_kv(kv_c, k_pe, theirs[..., :48], slots, kv_scale=kv_scale)
        assert torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8))


@pytest.mark.parametrize("shape", [(1, 16), (7, 33), (40, 256), (70, 576)])
@pytest.mark.parametrize("on_device", [False, True])
def test_quantize_gives_the_bits_of_torch_with_nan_in_padded_rows(
    shape: tuple[int, int], on_device: bool
) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).bfloat16()
    live = (shape[0] + 1) // 2
    x[live:] = float("nan")
    num_live = torch.tensor([live], dtype=torch.int32) if on_device else live
    x8, scale = quantize_fp8(x, num_live=num_live)
    x8_torch, scale_torch = torch_quantize.quantize_fp8(x, num_live=num_live)
    assert torch.equal(scale, scale_torch)
    assert torch.equal(x8[:live].view(torch.uint8), x8_torch[:live].view(torch.uint8))
    assert x8[live:].float().isnan().all()


def test_a_nan_in_a_live_row_reaches_the_scale() -> None:
    x = torch.ones(4, 64)
    x[1, 5] = float("nan")
    x8, scale = quantize_fp8(x, num_live=3)
    assert scale.isnan().all() and x8.float().isnan().all()


def test_a_tensor_of_zeros_or_without_live_rows_has_scale_one() -> None:
    assert quantize_fp8(torch.zeros(4, 64))[1].tolist() == [1.0]
    assert quantize_fp8(torch.ones(4, 64), num_live=0)[1].tolist() == [1.0]


def test_merge_takes_prefix_and_suffix_of_different_strides() -> None:
    generator = torch.Generator().manual_seed(7)
    prefix = torch.randn(9, 4, 32, generator=generator)
    suffix = torch.randn(9, 4, 48, generator=generator)[..., :32]
    prefix_lse, suffix_lse = (
        torch.randn(4, 9, generator=generator),
        torch.randn(9, 4, generator=generator).T,
    )
    out, lse = merge_attn_states(prefix, prefix_lse, suffix, suffix_lse, num_tokens_with_context=6)
    expected, expected_lse = torch_merge.merge_attn_states(
        prefix, prefix_lse, suffix, suffix_lse, num_tokens_with_context=6
    )
    assert (
        float((out - expected).abs().max()) < 1e-6
        and float((lse - expected_lse).abs().max()) < 1e-6
    )
    assert torch.equal(out[6:], suffix[6:]) and torch.equal(lse[:, 6:], suffix_lse[:, 6:])


def test_a_merge_with_one_empty_side_keeps_the_bits_of_the_other() -> None:
    generator = torch.Generator().manual_seed(8)
    lone = torch.randn(5, 4, 32, generator=generator).bfloat16()
    nothing = torch.full_like(lone, float("nan"))
    lse = torch.randn(4, 5, generator=generator)
    for empty in (float("inf"), -float("inf")):
        for order in (1, -1):
            sides = [(lone, lse), (nothing, torch.full_like(lse, empty))][::order]
            out, merged_lse = merge_attn_states(*sides[0], *sides[1])
            assert torch.equal(out, lone) and torch.equal(merged_lse, lse)
        out, merged_lse = merge_attn_states(
            nothing, torch.full_like(lse, empty), nothing, torch.full_like(lse, -empty)
        )
        assert not out.any() and bool((merged_lse == -float("inf")).all())
