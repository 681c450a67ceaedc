"""The memory behaviour of the built-in kernels: what stays unwritten, what faults, what a stale
plan does.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch_poison.allocations import AllocationPoison
from torch_poison.patterns import OUT_OF_RANGE, Poison, bits_view, sentinel_bits

from harness.core.errors import IllegalAddress
from harness.ops.context_attention.kernels import dense as torch_context
from harness.ops.mla_decode import inputs as mla_decode_inputs
from harness.ops.mla_decode.inputs import MlaDecodeInputs
from harness.ops.mla_decode.kernels import tiled as torch_decode
from harness.ops.mla_decode.params import MlaDecodeParams
from harness.ops.mla_decode_plan.kernels.tiled import mla_decode_plan
from harness.ops.parts.split_plan import MAX_SPLITS
from harness.ops.quantize_fp8.kernels.dense import (
    quantize_fp8,
    quantize_fp8_fmax,
    quantize_fp8_per_token,
)
from harness.ops.route_experts.kernels.dense import route_experts
from harness.ops.write_kv.kernels import by_slot as torch_write

POISON = Poison("nan", frozenset({"workspace"}))


def made(**changes: object) -> MlaDecodeInputs:
    params = {
        "kv": "fp32",
        "seq_lens": (70, 0, 200),
        "num_heads": 2,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
    }
    return mla_decode_inputs.draw(MlaDecodeParams.model_validate({**params, **changes}), seed=1)


def call(
    kernel: object, given: MlaDecodeInputs, **changes: object
) -> tuple[torch.Tensor, torch.Tensor]:
    assert callable(kernel)
    arguments = {"scale": given.scale, "kv_scale": given.kv_scale, **changes}
    result: tuple[torch.Tensor, torch.Tensor] = kernel(
        given.q, given.kv_cache, given.block_table, given.seq_lens, **arguments
    )
    return result


def test_decode_leaves_rows_of_empty_requests_as_the_allocator_gave_them() -> None:
    with AllocationPoison(POISON):
        out, lse = call(torch_decode.mla_decode, made())
    assert bool((bits_view(out[1]) == sentinel_bits(torch.float32, "workspace")).all())
    assert bool((bits_view(lse[1]) == sentinel_bits(torch.float32, "workspace")).all())
    assert bool(out[0].isfinite().all()) and bool(out[2].isfinite().all())


def test_the_identity_kernel_writes_empty_rows() -> None:
    with AllocationPoison(POISON):
        out, lse = call(torch_decode.mla_decode_identity, made())
    assert bool((out[1] == 0).all()) and bool((lse[1] == -math.inf).all())


@pytest.mark.parametrize("bad", [-1, OUT_OF_RANGE, 1000])
@pytest.mark.parametrize("row", [0, 2])
def test_a_table_entry_that_is_no_block_is_an_illegal_address(bad: int, row: int) -> None:
    given = made()
    given.block_table[row, 1] = bad
    with pytest.raises(IllegalAddress, match="block_table"):
        call(torch_decode.mla_decode, given)


def test_a_length_past_the_table_is_an_illegal_address() -> None:
    given = made(table_pad=0)
    given.seq_lens[2] = 64 * 50
    with pytest.raises(IllegalAddress, match="block_table column"):
        call(torch_decode.mla_decode, given)


def test_only_the_prefetching_kernel_minds_the_table_of_an_empty_request() -> None:
    given = made()
    given.block_table[1] = -1
    call(torch_decode.mla_decode, given)
    with pytest.raises(IllegalAddress, match="block_table: index -1"):
        call(torch_decode.mla_decode_prefetch, given)


def test_a_nan_in_a_tail_reaches_live_rows_of_the_multiplying_kernel_only() -> None:
    given = made()
    given.kv_cache[int(given.block_table[0, 1]), 6:] = math.nan
    assert not bool(call(torch_decode.mla_decode, given)[0][[0, 2]].isnan().any())
    out = call(torch_decode.mla_decode_multiply, given)[0]
    assert bool(out[0].isnan().all()) and not bool(out[2].isnan().any())


def test_a_plan_covers_every_page_once_and_has_a_shape_of_the_batch_size_alone() -> None:
    lengths = torch.tensor([0, 1, 64, 65, 1000], dtype=torch.int32)
    plan = mla_decode_plan(lengths, num_heads=4)
    assert (
        plan.work.shape == (5 * MAX_SPLITS, 3)
        and plan.work.dtype == plan.num_splits.dtype == torch.int32
    )
    pages: list[list[int]] = [[] for _ in lengths]
    for request, begin, end in plan.work.tolist():
        pages[request] += range(begin, end)
    assert [sorted(each) for each in pages] == [list(range(-(-int(n) // 64))) for n in lengths]
    assert plan.num_splits.tolist() == [0, 1, 1, 1, 4]


def test_a_plan_writes_all_of_its_tensors() -> None:
    with AllocationPoison(Poison("nan", frozenset({"workspace"}))):
        plan = mla_decode_plan(torch.tensor([0, 3, 700], dtype=torch.int32), num_heads=1)
    assert int(plan.work.min()) >= 0 and int(plan.num_splits.min()) >= 0


def test_a_stale_plan_leaves_out_later_pages_and_a_longer_one_is_clipped() -> None:
    given = made(seq_lens=(70, 300))
    right = call(torch_decode.mla_decode, given)[0]
    stale = mla_decode_plan(torch.tensor([70, 64], dtype=torch.int32), num_heads=2)
    wrong = call(torch_decode.mla_decode, given, metadata=stale)[0]
    # The stale plan cuts request 0 elsewhere, which rounds elsewhere; request 1 misses four of its
    # five pages.
    assert (
        float((wrong[0] - right[0]).abs().max())
        < 1e-5
        < 0.05
        < float((wrong[1] - right[1]).abs().max())
    )
    longer = mla_decode_plan(torch.tensor([4000, 4000], dtype=torch.int32), num_heads=2)
    clipped = call(torch_decode.mla_decode, given, metadata=longer)[0]
    assert float((clipped - right).abs().max()) < 1e-5


@pytest.mark.parametrize("name", ["work", "num_splits"])
def test_a_plan_of_wild_numbers_is_an_illegal_address(name: str) -> None:
    given = made()
    plan = mla_decode_plan(given.seq_lens, num_heads=2)
    if name == "work":
        plan.work[:, 0] = OUT_OF_RANGE
    else:
        plan.num_splits.fill_(OUT_OF_RANGE)
    with pytest.raises(IllegalAddress, match=f"metadata.{name}"):
        call(torch_decode.mla_decode, given, metadata=plan)


def test_decode_reads_a_cache_that_is_a_strided_view_of_a_pool() -> None:
    given = made(kv="fp8_e4m3")
    blocks, page, width = given.kv_cache.shape
    pool = torch.zeros(blocks, 2, page, width, dtype=torch.uint8)
    pool[:, 1] = given.kv_cache.view(torch.uint8)
    want = call(torch_decode.mla_decode, given)[0]
    given.kv_cache = pool[:, 1].view(torch.float8_e4m3fn)
    assert torch.equal(call(torch_decode.mla_decode, given)[0][[0, 2]], want[[0, 2]])


def test_context_attention_leaves_tokens_without_keys_and_padded_tokens_unwritten() -> None:
    q, k = torch.randn(6, 2, 8), torch.randn(3, 2, 8)
    starts, chunks = (
        torch.tensor([0, 2, 4], dtype=torch.int32),
        torch.tensor([0, 3, 3], dtype=torch.int32),
    )
    with AllocationPoison(POISON):
        out, lse = torch_context.context_attention(q, k, k, starts, chunks, scale=1.0)
    unwritten = sentinel_bits(torch.float32, "workspace")
    assert bool((bits_view(out[2:]) == unwritten).all()) and bool(out[:2].isfinite().all())
    assert bool((lse[:, 2:4] == -math.inf).all()) and bool(
        (bits_view(lse[:, 4:]) == unwritten).all()
    )


def test_context_offsets_past_the_keys_are_an_illegal_address() -> None:
    q = torch.randn(2, 1, 8)
    starts, chunks = (
        torch.tensor([0, 2], dtype=torch.int32),
        torch.tensor([0, 9], dtype=torch.int32),
    )
    with pytest.raises(IllegalAddress, match="chunk_start_loc"):
        torch_context.context_attention(q, q, q, starts, chunks, scale=1.0)


def test_a_slot_past_the_cache_is_an_illegal_address_and_a_negative_one_is_skipped() -> None:
    cache = torch.zeros(2, 64, 6)
    rows, rope = torch.ones(2, 4), torch.ones(2, 2)
    torch_write.write_kv(rows, rope, cache, torch.tensor([-1, -7]))
    assert bool((cache == 0).all())
    with pytest.raises(IllegalAddress, match="slot_mapping"):
        torch_write.write_kv(rows, rope, cache, torch.tensor([0, 128]))


def test_both_kinds_of_maximum_differ_on_a_nan_in_a_live_row() -> None:
    x = torch.ones(3, 4)
    x[1, 2] = math.nan
    assert bool(quantize_fp8(x)[0].float().isnan().all())
    x8, scale = quantize_fp8_fmax(x)
    assert float(scale) == pytest.approx(1 / 448) and int(x8.float().isnan().sum()) == 1
    per_token = quantize_fp8_per_token(x)[0].float()
    assert per_token.isnan().all(dim=1).tolist() == [False, True, False]


def test_the_number_of_live_rows_may_be_a_tensor_as_a_graph_needs_it() -> None:
    x = torch.ones(3, 4)
    x[2] = math.nan
    for live in (2, torch.tensor([2]), torch.tensor(2, dtype=torch.int32)):
        assert bool(quantize_fp8(x, num_live=live)[1].isfinite().all())


def test_a_tensor_of_zeros_is_quantized_with_scale_one() -> None:
    x8, scale = quantize_fp8(torch.zeros(2, 4))
    assert float(scale) == 1.0 and bool((x8.float() == 0).all())


def test_experts_of_a_token_are_distinct_even_where_its_logits_are_nan() -> None:
    logits = torch.randn(3, 8)
    logits[1] = math.nan
    ids, weights = route_experts(logits, num_experts_per_tok=4)
    assert ids.dtype == torch.int32 and len(set(ids[1].tolist())) == 4
    assert bool(weights[[0, 2]].isfinite().all()) and bool(weights[1].isnan().all())
