"""Decode steps repeated with other padding: the same requests in the same rows, more or fewer padded rows.

The batch keeps its size, because matrix products round differently at another size. Rows that are not padding repeat
the requests. They store nothing and are not compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from harness.engine.batch import Batch, DecodeMetadata, Padding, fill_static
from harness.engine.memory import PagedMemory
from harness.engine.observations import PaddingNote
from harness.engine.paged_model import PagedModel
from harness.memory.poison.patterns import Poison

MAX_NOTES = 3
"""How many steps of an engine are repeated. Later steps show nothing new."""
MORE_ROWS = 3
"""The least room for padding in a batch, so that several lengths of padding can be tried."""


@dataclass(slots=True)
class PaddedTwins:
    """Repeats replayed steps of one engine eagerly, each with a new number of padded requests.

    `dummy` makes a dummy batch of a size. `max_requests` is the limit of a batch where kernels count in a workspace.
    """

    dummy: Callable[[int], Batch]
    poison: Poison
    padding: Padding
    max_requests: int | None
    notes: list[PaddingNote] = field(default_factory=list)
    _tried: dict[int, int] = field(default_factory=dict)

    def note(self, model: PagedModel, inputs: Batch, memory: PagedMemory, num_live: int, step: int) -> None:
        """Run the step of `num_live` requests in `inputs` on copies of `memory`, unpadded and padded."""
        size = max(inputs.num_decodes, num_live + MORE_ROWS)
        size = size if self.max_requests is None else min(size, self.max_requests)
        if len(self.notes) >= MAX_NOTES or size == num_live:
            return
        num_padded = self._tried[num_live] = self._tried.get(num_live, 0) % (size - num_live) + 1
        logits = [self._logits(model, inputs, memory, num_live, size, count) for count in (0, num_padded)]
        self.notes.append(PaddingNote(step, num_padded, logits[0], logits[1]))

    def _logits(
        self, model: PagedModel, inputs: Batch, memory: PagedMemory, num_live: int, size: int, num_padded: int
    ) -> Tensor:
        twin = self.dummy(size)
        assert inputs.decode is not None and twin.decode is not None
        if inputs.decode.output is not None:
            twin.decode.output = inputs.decode.output.new_zeros(size, *inputs.decode.output.shape[1:])
        rest = repeated(inputs, num_live, size - num_padded, self.padding.slot)
        fill_static(twin, rest, self.poison, self.padding)
        return model.forward(twin, memory.snapshot()).logits[: num_live * inputs.decode.query_len]


def repeated(inputs: Batch, num_live: int, count: int, slot: int) -> Batch:
    """The first `num_live` requests of a decode batch, repeated to `count` requests.

    Repetitions are stored at `slot` and do not count as live.
    """
    assert inputs.decode is not None
    decode, query_len = inputs.decode, inputs.decode.query_len
    device = inputs.hidden.device
    order = torch.arange(count, device=device) % num_live
    rows = (order[:, None] * query_len + torch.arange(query_len, device=device)).flatten()
    is_first = torch.arange(len(rows), device=device) < num_live * query_len
    repeated_decode = replace(
        decode,
        block_table=decode.block_table[order],
        seq_lens=decode.seq_lens[order],
        state_blocks=decode.state_blocks[order],
        output=None,
        metadata=DecodeMetadata(),
        window_table=None if decode.window_table is None else decode.window_table[order],
    )
    return Batch(
        hidden=inputs.hidden[rows],
        positions=inputs.positions[rows],
        slot_mapping=torch.where(is_first, inputs.slot_mapping[rows], slot),
        decode=repeated_decode,
        window_slots=None if inputs.window_slots is None else torch.where(is_first, inputs.window_slots[rows], slot),
    )
