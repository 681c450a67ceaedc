"""The pool's bytes: two kinds of layer in one block, and what a block holds when it changes
hands.
"""

from __future__ import annotations

import pytest
import torch
from torch_poison.patterns import Poison, bits_view, sentinel_bits

from harness.core.engine_params import EngineParams
from harness.core.params import KvType
from harness.engine.memory import KV_DTYPES, CacheLayout, PagedMemory
from harness.engine.poisoned import fill_pool, fill_tails
from harness.engine.runner import hand_over_blocks
from harness.engine.schedule.config import KV_SCALE, model_config
from harness.engine.schedule.sequence import ScheduledSequence, Sequence, Step
from harness.judge.probes.twins import copy_of_memory

HYBRID = model_config(EngineParams(layers=("kda", "mla", "mla", "kda", "kda")))
FRIENDLY = Poison("nan", frozenset())


def poisoned(*sites: str) -> Poison:
    return Poison("nan", frozenset(sites))


def holds(tensor: torch.Tensor, site: str) -> bool:
    return bool((bits_view(tensor) == sentinel_bits(tensor.dtype, site)).all())


def step(
    freed: tuple[int, ...] = (),
    attention: tuple[int, ...] = (),
    state: tuple[int, ...] = (),
    zero: tuple[int, ...] = (),
) -> Step:
    return Step((), freed, attention, state, blocks_to_zero=zero)


@pytest.mark.parametrize("kv", list(KV_DTYPES))
def test_a_block_has_room_for_a_page_of_latents_and_for_a_state(kv: KvType) -> None:
    layout = CacheLayout(HYBRID, kv, 5)
    memory = PagedMemory(layout)
    assert memory.latents(1).shape == (5, 64, HYBRID.latent_dim)
    assert memory.latents(1).dtype == KV_DTYPES[kv]
    assert memory.ssm_states(0).shape == (5, 4, 16, 16)
    assert memory.conv_states(0).shape == (5, 192, 3)
    assert layout.block_bytes >= 64 * HYBRID.latent_dim * KV_DTYPES[kv].itemsize
    assert layout.block_bytes >= 4 * (4 * 16 * 16 + 192 * 3)
    assert layout.kv_scale == (KV_SCALE if kv == "fp8_e4m3" else None)


def test_layers_of_one_kind_have_slots_of_their_own_and_kinds_share_them() -> None:
    memory = PagedMemory(CacheLayout(HYBRID, "fp32", 5))
    assert memory.layout.slot_of_layer == (0, 0, 1, 1, 2)
    memory.latents(1)[3] = 1.0
    assert not memory.latents(2).any()
    assert bool((memory.ssm_states(0)[3] == 1.0).all())
    assert not memory.ssm_states(3).any()


def test_a_float32_state_read_as_bfloat16_latents_holds_values_that_are_not_finite() -> None:
    memory = PagedMemory(CacheLayout(HYBRID, "bf16", 5))
    generator = torch.Generator().manual_seed(0)
    memory.ssm_states(0).copy_(torch.randn(memory.ssm_states(0).shape, generator=generator))
    assert not bool(torch.isfinite(memory.latents(1).float()).all())


def test_states_do_not_overlap() -> None:
    memory = PagedMemory(CacheLayout(HYBRID, "bf16", 5))
    memory.ssm_states(0)[2] = 1.0
    assert not memory.conv_states(0).any()


def test_a_snapshot_is_memory_of_its_own() -> None:
    memory = PagedMemory(CacheLayout(HYBRID, "bf16", 5))
    copy = copy_of_memory(memory)
    memory.latents(1)[2] = 1.0
    assert not copy.data.any()


def test_before_the_first_request_every_block_holds_its_sites_poison() -> None:
    memory = PagedMemory(CacheLayout(HYBRID, "bf16", 5))
    fill_pool(memory, 4, "kv.free", poisoned("kv.free", "kv.null", "block_table.pad"))
    for blocks, site in (
        (slice(0, 1), "kv.null"),
        (slice(1, 4), "kv.free"),
        (slice(4, 5), "block_table.pad"),
    ):
        assert holds(memory.latents(1)[blocks], site)
    fill_pool(memory, 4, "kv.free", FRIENDLY)
    assert not memory.data.any()


@pytest.mark.parametrize("listed", [True, False])
def test_new_blocks_are_zeroed_where_the_step_lists_them(listed: bool) -> None:
    memory = PagedMemory(CacheLayout(HYBRID, "bf16", 5))
    hand_over_blocks(
        memory, step(attention=(1,), state=(2,), zero=(1,) if listed else ()), poisoned("kv.new")
    )
    assert holds(memory.latents(1)[1], "kv.new") is not listed
    assert bool(memory.data[:, 1].any()) is not listed
    assert holds(memory.latents(1)[2], "kv.new")
    assert not memory.data[:, 3].any()


def test_a_block_that_is_freed_and_given_in_one_step_is_new() -> None:
    memory = PagedMemory(CacheLayout(HYBRID, "bf16", 5))
    hand_over_blocks(memory, step(freed=(1, 2), attention=(2,)), poisoned("kv.new", "kv.free"))
    assert holds(memory.latents(1)[1], "kv.free")
    assert holds(memory.latents(1)[2], "kv.new")


def test_a_new_block_is_friendly_where_the_poison_does_not_cover_it() -> None:
    memory = PagedMemory(CacheLayout(HYBRID, "bf16", 5))
    memory.data.fill_(7)
    hand_over_blocks(memory, step(attention=(1,), state=(2,)), FRIENDLY)
    assert not memory.data[:, 1:3].any() and bool((memory.data[:, 3] == 7).all())


def test_a_tail_begins_at_the_length_and_ends_with_the_page() -> None:
    memory = PagedMemory(CacheLayout(HYBRID, "bf16", 6))
    sequence = Sequence(0, [0] * 70, 2, blocks=[3, 1])
    fill_tails(memory, [ScheduledSequence(sequence, 70)], poisoned("kv.tail"))
    assert not memory.data[:, 3].any()
    for layer in (1, 2):
        assert not memory.latents(layer)[1, :6].any()
        assert holds(memory.latents(layer)[1, 6:], "kv.tail")
