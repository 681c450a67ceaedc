"""Layouts of the paged cache: strides of pages, memory beside them, pools of any size in address
space.
"""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError

from harness.core.errors import InputError
from harness.core.shapes import CacheLayout
from harness.engine.faults.attention import packed_pages
from harness.ops.mla_decode import inputs as mla_decode_inputs
from harness.ops.mla_decode.faults import offsets_in_32_bits, page_stride_for_manager_blocks
from harness.ops.mla_decode.inputs import MlaDecodeInputs
from harness.ops.mla_decode.kernels.tiled import page_offsets
from harness.ops.mla_decode.params import MlaDecodeParams
from harness.ops.mla_decode_sparse.params import MlaDecodeSparseParams
from harness.ops.parts.cache_layouts import PADDING, empty_cache, laid_out, neighbors
from harness.ops.write_kv.params import WriteKvParams
from tests.transcripts import Approved

STRIDE = 2**29
PAGE = 64 * 80
LAYOUTS: list[CacheLayout] = [
    "contiguous",
    "block_major",
    "padded_pages",
    "manager_blocks",
    "large",
]
SMALL = {"kv_lora_rank": 16, "qk_rope_head_dim": 8}


def decode_inputs(layout: CacheLayout, **changes: object) -> MlaDecodeInputs:
    values = {"kv": "fp32", "seq_lens": (130, 0, 64, 257), "num_heads": 2, **SMALL, **changes}
    return mla_decode_inputs.draw(
        MlaDecodeParams.model_validate({**values, "layout": layout}), seed=3
    )


def test_pages_lie_one_behind_the_other_unless_a_stride_is_given() -> None:
    assert empty_cache(3, 80, torch.bfloat16).stride() == (PAGE, 80, 1)


def test_a_page_past_four_billion_elements_can_be_written_and_read() -> None:
    cache = empty_cache(10, 80, torch.float8_e4m3fn, page_stride=STRIDE)
    assert cache.shape == (10, 64, 80) and cache.stride(0) == STRIDE
    cache.view(torch.uint8)[9] = 7
    assert int(cache.view(torch.uint8)[8].count_nonzero()) == 0
    assert bool((cache.view(torch.uint8)[9] == 7).all())


def test_a_stride_smaller_than_a_page_is_refused(approved: Approved) -> None:
    with approved.raises(InputError):
        empty_cache(2, 80, torch.bfloat16, page_stride=5000)


def test_a_stride_beside_a_layout_that_has_its_own_is_refused(approved: Approved) -> None:
    assert MlaDecodeParams(layout="large", page_stride=STRIDE).page_stride == STRIDE
    with approved.raises(ValidationError):
        MlaDecodeParams(layout="block_major", page_stride=STRIDE)


def test_a_flat_slot_has_no_blocks_of_a_manager() -> None:
    for model in (WriteKvParams, MlaDecodeSparseParams):
        with pytest.raises(ValidationError, match="layout"):
            model.model_validate({"layout": "manager_blocks"})


def test_offsets_are_formed_in_64_bits_and_wrap_with_the_fault() -> None:
    blocks = torch.tensor([7, 8, 9], dtype=torch.int32)
    assert page_offsets(blocks, STRIDE).tolist() == [7 * STRIDE, 8 * STRIDE, 9 * STRIDE]
    assert offsets_in_32_bits(blocks, STRIDE).tolist() == [7 * STRIDE, 0, STRIDE]


@pytest.mark.parametrize(
    ("layout", "stride", "offset"),
    [
        ("contiguous", PAGE, 0),
        ("block_major", 3 * PAGE, PAGE),
        ("manager_blocks", 3 * PAGE, PAGE),
        ("padded_pages", PAGE + PADDING, 0),
        ("large", -(-(2**31) // (4 * PAGE)) * PAGE, 0),
    ],
)
def test_each_layout_has_its_stride_and_its_first_page(
    layout: CacheLayout, stride: int, offset: int
) -> None:
    cache = empty_cache(8, 80, torch.bfloat16, layout)
    assert (
        cache.shape == (8, 64, 80)
        and cache.stride() == (stride, 80, 1)
        and cache.storage_offset() == offset
    )


def test_half_of_the_pages_of_a_large_pool_begin_past_two_billion_elements() -> None:
    cache = empty_cache(9, 80, torch.float8_e4m3fn, "large")
    starts = torch.arange(9) * cache.stride(0)
    assert int((starts >= 2**31).sum()) == 5


@pytest.mark.parametrize("kv", [torch.float32, torch.float8_e4m3fn])
@pytest.mark.parametrize("layout", ["block_major", "padded_pages", "manager_blocks"])
def test_every_element_of_the_allocation_is_in_a_page_or_beside_one(
    layout: CacheLayout, kv: torch.dtype
) -> None:
    cache = empty_cache(8, 80, kv, layout)
    everything = torch.empty(0, dtype=kv).set_(cache.untyped_storage())
    raw = everything.view(torch.uint8)
    for part in (cache, *neighbors(cache, layout).values()):
        part.view(torch.uint8).add_(1)
    assert raw.numel() == cache.untyped_storage().nbytes() and bool((raw == 1).all())


@pytest.mark.parametrize("layout", ["contiguous", "large"])
def test_dense_and_large_pools_have_nothing_beside_their_pages(layout: CacheLayout) -> None:
    assert neighbors(empty_cache(8, 80, torch.bfloat16, layout), layout) == {}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_cache_in_a_layout_has_the_content_of_its_pages_and_its_copy_is_dense(
    layout: CacheLayout,
) -> None:
    pages = torch.randn(6, 64, 24)
    cache = laid_out(pages, layout)
    assert torch.equal(cache, pages) and cache.clone().untyped_storage().nbytes() == pages.nbytes


@pytest.mark.parametrize("layout", ["block_major", "padded_pages", "large"])
def test_a_layout_changes_no_value_and_no_number_of_the_inputs(layout: CacheLayout) -> None:
    plain, other = decode_inputs("contiguous"), decode_inputs(layout)
    assert torch.equal(plain.kv_cache, other.kv_cache) and torch.equal(plain.q, other.q)
    assert torch.equal(plain.block_table, other.block_table)


def test_a_manager_block_gives_four_pages_in_a_row_and_the_table_names_those_without_a_token() -> (
    None
):
    made = decode_inputs("manager_blocks", table_pad=0)
    assert made.block_table.shape == (4, 8)
    blocks = made.block_table.view(4, 2, 4)
    assert bool((blocks[:, :, 1:] - blocks[:, :, :-1])[blocks[:, :, 1:] > 0].eq(1).all())
    assert bool((blocks[..., 0] % 4 == 0).all())
    # 257 tokens are 5 pages of 8, and none is shared.
    named = made.block_table[made.block_table > 0].tolist()
    assert len(named) == len(set(named)) == 4 + 4 + 8
    last = made.block_table[3].tolist()
    tails = {part.memory.data_ptr() for part in made.unowned if part.site == "kv.tail"}
    assert {made.kv_cache[page].data_ptr() for page in last[5:]} <= tails
    assert {made.kv_cache[page].data_ptr() for page in last[:5]}.isdisjoint(tails)


def test_packed_pages_begin_right_behind_each_other_and_run_through_other_layers() -> None:
    cache = empty_cache(8, 80, torch.float32, "block_major")
    packed = packed_pages(cache)
    assert packed.stride(0) == PAGE and packed[0].data_ptr() == cache[0].data_ptr()
    assert packed[3].data_ptr() == cache[1].data_ptr()


def test_the_stride_of_a_page_taken_for_that_of_a_manager_block_finds_block_n_at_page_n() -> None:
    cache = torch.arange(16.0).view(16, 1, 1).expand(16, 64, 2).contiguous()
    read = page_stride_for_manager_blocks(laid_out(cache, "manager_blocks"))
    assert (
        read[::4, 0, 0].tolist() == [0, 1, 2, 3]
        and read[3, 0, 0] == 1
        and not bool(read[1:3].any())
    )
