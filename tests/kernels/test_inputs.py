"""Seeded inputs: the same for one seed, live where they should be, and every unowned byte
listed.
"""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.ops.mla_decode import inputs as mla_decode_inputs
from harness.ops.mla_decode.params import MlaDecodeParams
from harness.ops.parts import inputs
from harness.ops.write_kv import inputs as write_kv_inputs
from harness.ops.write_kv.params import WriteKvParams


def small(**changes: object) -> MlaDecodeParams:
    return MlaDecodeParams(num_heads=2, kv_lora_rank=16, qk_rope_head_dim=8).model_copy(
        update=changes
    )


@settings(max_examples=30)
@given(st.lists(st.integers(0, 200), min_size=1, max_size=5), st.integers(1, 4), st.integers(0, 4))
def test_each_slot_of_the_cache_is_live_once_or_listed_as_unowned(
    lengths: list[int], spare: int, pad: int
) -> None:
    params = small(kv="fp32", seq_lens=tuple(lengths), num_spare_blocks=spare, table_pad=pad)
    made = mla_decode_inputs.draw(params, seed=5)
    owners = torch.zeros(made.kv_cache.shape[:2], dtype=torch.int64)
    for b, length in enumerate(lengths):
        for position in range(length):
            owners[int(made.block_table[b, position // 64]), position % 64] += 1
    marked = made.kv_cache.clone().zero_()
    made.kv_cache.zero_()
    for part in made.unowned:
        if part.memory.dtype.is_floating_point:
            part.memory.add_(1)
    marked = made.kv_cache[..., 0].long()
    assert bool((owners + marked == 1).all())
    assert int(owners[inputs.NULL_BLOCK].sum()) == int(owners[made.trap_block].sum()) == 0


def test_one_seed_makes_the_same_inputs_and_another_seed_others() -> None:
    first, again, other = (mla_decode_inputs.draw(small(), seed) for seed in (1, 1, 2))
    assert torch.equal(first.q, again.q) and torch.equal(first.kv_cache, again.kv_cache)
    assert not torch.equal(first.q, other.q)


def test_pages_of_a_request_are_scattered() -> None:
    table = mla_decode_inputs.draw(small(seq_lens=(640,)), seed=1).block_table[0, :10]
    assert not bool((table[1:] > table[:-1]).all())


def test_queries_can_be_a_slice_of_a_wider_tensor() -> None:
    assert mla_decode_inputs.draw(small(contiguous_q=True), 1).q.is_contiguous()
    assert not mla_decode_inputs.draw(small(contiguous_q=False), 1).q.is_contiguous()


def test_an_fp8_cache_uses_the_range_of_its_type() -> None:
    stored = mla_decode_inputs.draw(small(kv="fp8_e4m3", seq_lens=(640,)), 1).kv_cache.float().abs()
    assert 300 < float(stored.max()) <= 448


def test_padded_tokens_of_write_kv_have_negative_slots_and_no_live_slot_is_in_the_null_block() -> (
    None
):
    made = write_kv_inputs.draw(
        WriteKvParams(num_tokens=9, num_padded=3, kv_lora_rank=16, qk_rope_head_dim=8), 1
    )
    assert made.slot_mapping[-3:].tolist() == [-1, -1, -1]
    live = made.slot_mapping[:-3]
    assert int(live.min()) >= 64 and len(set(live.tolist())) == 6
