"""Padding: every mark by every guard, slots that are copied, dummies that store, steps repeated
with other padding.
"""

from __future__ import annotations

import pytest
import torch
from torch_poison.patterns import Poison

from harness.core.catalog import FAULTS
from harness.core.errors import IllegalAddress
from harness.core.ops import PAGE_SIZE
from harness.core.seams import inject
from harness.engine import batch as batches
from harness.engine import linear_attention as paged
from harness.engine.batch import Batch, Padding
from harness.engine.model.kda import KimiDeltaAttention
from harness.engine.runner import trash_block
from harness.engine.schedule.block_pool import BlockPool
from harness.engine.schedule.config import EngineModelConfig
from harness.engine.schedule.sequence import ScheduledSequence, Sequence
from harness.judge.probes.twins import repeated

FRIENDLY = Poison("nan", frozenset())
COLUMNS = 4


@pytest.fixture(scope="module")
def embedding() -> torch.nn.Embedding:
    torch.manual_seed(0)
    return torch.nn.Embedding(300, 6).requires_grad_(False)


def decode_batch(embedding: torch.nn.Embedding, num_requests: int) -> Batch:
    items = []
    for i in range(num_requests):
        tokens = list(range(10 * i, 10 * i + 66))
        sequence = Sequence(i, tokens, 5, num_computed_tokens=65, blocks=[2 * i + 1, 2 * i + 2])
        items.append(ScheduledSequence(sequence, 1))
    return batches.build(items, embedding, COLUMNS, FRIENDLY)


@pytest.fixture(scope="module")
def attention() -> KimiDeltaAttention:
    torch.manual_seed(0)
    config = EngineModelConfig(
        architecture="kimi_linear",
        vocab_size=16,
        hidden_size=16,
        num_layers=2,
        layer_types=("kda", "mla"),
        num_heads=2,
        qk_nope_head_dim=8,
        qk_rope_head_dim=4,
        v_head_dim=8,
        kv_lora_rank=8,
        intermediate_size=16,
        use_rope=False,
        kda_num_heads=2,
        kda_head_dim=8,
    )
    return KimiDeltaAttention(config).eval().requires_grad_(False)


# What padding is marked with, the guard that asks who owns a state, and what becomes of state 0.
CELLS = [
    (0, "not the null block", "untouched"),
    (0, "not below zero", "written"),
    (-1, "not the null block", "illegal address"),
    (-1, "not below zero", "illegal address"),
]


@pytest.mark.parametrize(("mark", "guard", "expected"), CELLS)
def test_which_marks_of_padding_are_safe_with_which_guard(
    attention: KimiDeltaAttention, mark: int, guard: str, expected: str
) -> None:
    """The matrix of vllm-project/vllm#35431 and #39064: neither mark is right by itself, a mark and
    a guard are.
    """
    torch.manual_seed(1)
    conv, ssm = torch.randn(4, 48, 3), torch.randn(4, 2, 8, 8)
    before = conv[0].clone(), ssm[0].clone()
    blocks = torch.tensor([2, mark], dtype=torch.int32)

    def step() -> None:
        paged.update_states(attention, torch.randn(2, 16), conv, ssm, blocks)

    def run() -> None:
        if guard == "not below zero":
            with inject(FAULTS.get("pad.state-guard-below-zero")):
                step()
        else:
            step()

    if expected == "illegal address":
        with pytest.raises(IllegalAddress, match="state_blocks"):
            run()
        return
    run()
    untouched = torch.equal(conv[0], before[0]) and torch.equal(ssm[0], before[1])
    assert untouched == (expected == "untouched")


@pytest.mark.parametrize("num_keys", [0, 1])
@pytest.mark.parametrize("trash", [None, 7])
def test_padding_is_stored_and_read_as_the_engine_is_told(
    embedding: torch.nn.Embedding, num_keys: int, trash: int | None
) -> None:
    padding = Padding(trash, num_keys)
    static = batches.dummy_batch(4, embedding, COLUMNS, padding=padding)
    batches.fill_static(static, decode_batch(embedding, 2), FRIENDLY, padding)
    slot = -1 if trash is None else trash * PAGE_SIZE
    assert static.slot_mapping.tolist() == [2 * PAGE_SIZE + 1, 4 * PAGE_SIZE + 1, slot, slot]
    assert static.decode is not None
    assert static.decode.seq_lens.tolist() == [66, 66, num_keys, num_keys]
    assert static.decode.block_table[2:].tolist() == [[0] * COLUMNS] * 2


def test_the_block_of_padding_is_neither_the_null_block_nor_anybody_elses() -> None:
    pool = BlockPool(8)
    trash = trash_block(pool)
    assert trash != 0 and trash not in pool.free_blocks
    assert pool.num_usable_blocks == 5 == pool.num_free_blocks
    assert trash not in pool.flush()


def test_looking_at_the_slots_of_everybody_misses_a_copy_that_was_made_too_early(
    embedding: torch.nn.Embedding,
) -> None:
    static = batches.dummy_batch(4, embedding, COLUMNS)
    dummy = batches.dummy_batch(1, embedding, COLUMNS)
    live = decode_batch(embedding, 3)
    batches.fill_static(static, live, FRIENDLY)
    with inject(FAULTS.get("pad.private-slot-copy")):
        batches.fill_dummy(static, dummy, FRIENDLY)
    assert static.slot_mapping.tolist() == [-1] * 4
    assert static.stored_slots[:3].tolist() == live.slot_mapping.tolist()
    batches.fill_dummy(static, dummy, FRIENDLY)
    assert static.stored_slots.tolist() == [-1] * 4


def test_padded_rows_of_a_smaller_replay_name_no_slot_of_a_larger_one(
    embedding: torch.nn.Embedding,
) -> None:
    static = batches.dummy_batch(4, embedding, COLUMNS, has_window=True)
    large = batches.dummy_batch(4, embedding, COLUMNS, has_window=True)
    small = batches.dummy_batch(1, embedding, COLUMNS, has_window=True)
    assert large.window_slots is not None and static.window_slots is not None
    large.window_slots.copy_(torch.arange(64, 68))
    batches.fill_static(static, large, FRIENDLY)
    with inject(FAULTS.get("pad.slots-of-last-replay")):
        batches.fill_static(static, small, FRIENDLY)
        assert static.window_slots.tolist() == [-1, 65, 66, 67]
    batches.fill_static(static, small, FRIENDLY)
    assert static.window_slots.tolist() == [-1] * 4


def test_a_step_that_is_repeated_stores_each_request_once(embedding: torch.nn.Embedding) -> None:
    live = decode_batch(embedding, 2)
    twin = repeated(live, 2, 5, -1)
    assert twin.decode is not None and live.decode is not None
    assert twin.slot_mapping.tolist() == [*live.slot_mapping.tolist(), -1, -1, -1]
    assert torch.equal(twin.hidden, live.hidden[[0, 1, 0, 1, 0]])
    assert torch.equal(twin.decode.block_table, live.decode.block_table[[0, 1, 0, 1, 0]])
    assert twin.decode.num_live.tolist() == [2]
