"""Batches: where each token is stored, what padding looks like, and that yesterday's rows do not
stay.
"""

from __future__ import annotations

import pytest
import torch
from torch_poison.patterns import OUT_OF_RANGE, Poison, bits_view, sentinel_bits

from harness.core.catalog import FAULTS
from harness.core.seams import inject
from harness.engine import batch as batches
from harness.engine.schedule.sequence import ScheduledSequence, Sequence
from harness.judge.probes.twins import copy_of_inputs

FRIENDLY = Poison("nan", frozenset())
TRAPS = {"block_table.pad": 9}
COLUMNS = 4


@pytest.fixture(scope="module")
def embedding() -> torch.nn.Embedding:
    torch.manual_seed(0)
    return torch.nn.Embedding(300, 6).requires_grad_(False)


def scheduled(
    request: int, context: int, num_new_tokens: int, blocks: list[int]
) -> ScheduledSequence:
    tokens = list(range(100 * request, 100 * request + context + num_new_tokens))
    sequence = Sequence(request, tokens, 5, num_computed_tokens=context, blocks=blocks)
    return ScheduledSequence(sequence, num_new_tokens)


def decode_batch(
    embedding: torch.nn.Embedding, num_requests: int, poison: Poison = FRIENDLY
) -> batches.Batch:
    items = [scheduled(i, 65 + i, 1, [2 * i + 1, 2 * i + 2]) for i in range(num_requests)]
    return batches.build(items, embedding, COLUMNS, poison)


def static_batch(embedding: torch.nn.Embedding, size: int) -> batches.Batch:
    return batches.dummy_batch(size, embedding, COLUMNS)


def test_decodes_stand_first_and_prompts_by_falling_context() -> None:
    items = (
        scheduled(0, 0, 3, [1]),
        scheduled(1, 9, 1, [2]),
        scheduled(2, 64, 5, [3, 4]),
        scheduled(0, 7, 2, [5]),
    )
    assert [item.sequence.num_computed_tokens for item in batches.order(items)] == [9, 64, 7, 0]


def test_a_longer_chunk_with_context_stands_before_a_short_prompt_without() -> None:
    fresh, chunk = scheduled(0, 0, 3, [1]), scheduled(1, 43, 27, [2, 3])
    assert batches.prompts_in_order([fresh, chunk]) == [chunk, fresh]
    with inject(FAULTS.get("batch.prefills-by-tokens")):
        assert batches.order((chunk, fresh)) == [fresh, chunk]


def test_each_token_gets_the_slot_of_its_position(embedding: torch.nn.Embedding) -> None:
    batch = batches.build(
        [scheduled(1, 9, 1, [2]), scheduled(0, 62, 4, [5, 3])], embedding, COLUMNS, FRIENDLY
    )
    assert batch.positions.tolist() == [9, 62, 63, 64, 65]
    assert batch.slot_mapping.tolist() == [2 * 64 + 9, 5 * 64 + 62, 5 * 64 + 63, 3 * 64, 3 * 64 + 1]
    assert torch.equal(batch.hidden, embedding(torch.tensor([109, 62, 63, 64, 65])))
    assert batch.num_decodes == 1 and batch.decode is not None
    assert batch.decode.seq_lens.tolist() == [10]
    assert batch.prefill == (batches.PrefillRequest(1, 5, 62, (5, 3), 0),)


@pytest.mark.parametrize(
    ("poison", "filler"),
    [
        (FRIENDLY, 0),
        (Poison("nan", frozenset({"block_table.pad"}), traps=TRAPS), 9),
        (Poison("zeros", frozenset({"block_table.pad"}), traps=TRAPS), 0),
        (Poison("nan", frozenset({"block_table.pad"}), traps=TRAPS, strict=True), OUT_OF_RANGE),
    ],
    ids=["null block", "trap", "zeros", "strict"],
)
def test_table_entries_past_the_last_page_hold_the_filler(
    embedding: torch.nn.Embedding, poison: Poison, filler: int
) -> None:
    decode = decode_batch(embedding, 2, poison).decode
    assert decode is not None
    assert decode.block_table.tolist() == [[1, 2, filler, filler], [3, 4, filler, filler]]


def test_static_inputs_keep_nothing_of_the_step_before(embedding: torch.nn.Embedding) -> None:
    static = static_batch(embedding, 4)
    addresses = {name: tensor.data_ptr() for name, tensor in inputs_of(static).items()}
    batches.fill_static(static, decode_batch(embedding, 3), FRIENDLY)
    batches.fill_static(static, decode_batch(embedding, 1), FRIENDLY)
    decode = static.decode
    assert decode is not None
    assert decode.block_table.tolist() == [[1, 2, 0, 0], *[[0] * 4] * 3]
    assert decode.seq_lens.tolist() == [66, 0, 0, 0]
    assert static.slot_mapping.tolist()[1:] == [-1, -1, -1]
    assert decode.num_live.tolist() == [1]
    assert not static.hidden[1:].any() and not static.positions[1:].any()
    assert {name: tensor.data_ptr() for name, tensor in inputs_of(static).items()} == addresses


def test_padded_rows_hold_poison_where_nothing_may_depend_on_them(
    embedding: torch.nn.Embedding,
) -> None:
    static = static_batch(embedding, 3)
    poison = Poison("nan", frozenset({"graph.pad_rows", "block_table.pad"}), traps=TRAPS)
    batches.fill_static(static, decode_batch(embedding, 2, poison), poison)
    assert bool(
        (bits_view(static.hidden[2:]) == sentinel_bits(torch.float32, "graph.pad_rows")).all()
    )
    assert static.positions[2].item() == -1
    assert static.slot_mapping[2].item() == -1
    assert static.decode is not None
    # Kernels may look up the last page of an empty request, so the first entry names a block that
    # exists.
    assert static.decode.block_table[2].tolist() == [0, 9, 9, 9]


def test_a_dummy_batch_stores_nothing(embedding: torch.nn.Embedding) -> None:
    dummy = batches.dummy_batch(2, embedding, COLUMNS)
    assert dummy.slot_mapping.tolist() == [-1, -1]
    assert bool(dummy.hidden.any())


def inputs_of(batch: batches.Batch) -> dict[str, torch.Tensor]:
    assert batch.decode is not None
    return batches.tensors_by_name(batch) | batches.tensors_by_name(batch.decode)


def test_a_smaller_graph_reads_the_first_rows_of_the_same_memory(
    embedding: torch.nn.Embedding,
) -> None:
    static = static_batch(embedding, 4)
    head = static.head(2)
    assert head.num_decodes == 2
    for name, tensor in inputs_of(head).items():
        assert tensor.data_ptr() == inputs_of(static)[name].data_ptr()


def test_a_snapshot_is_equal_and_apart(embedding: torch.nn.Embedding) -> None:
    static = static_batch(embedding, 2)
    copy = copy_of_inputs(static)
    for name, tensor in inputs_of(copy).items():
        assert torch.equal(tensor, inputs_of(static)[name])
        assert tensor.data_ptr() != inputs_of(static)[name].data_ptr()
    assert copy.decode is not None and copy.decode.metadata.plan is None
