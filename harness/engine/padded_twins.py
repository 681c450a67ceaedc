"""A decode step once more with other padding: the same requests in the same rows, more or fewer rows of nobody's.

The batch keeps its size, because a matrix product rounds otherwise when it has another number of rows. Rows that are
not padding then hold the requests again, which store nothing and are not looked at.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from harness.engine.batch import Batch, DecodeInputs, DecodeMetadata, Padding, fill_static
from harness.engine.memory import PagedMemory
from harness.engine.observations import PaddingNote
from harness.engine.paged_model import PagedModel
from harness.memory.poison.patterns import Poison

MAX_NOTES = 3
"""Steps of an engine that are repeated with other padding; later ones show nothing new."""
MORE_ROWS = 3
"""Rows that a batch has room for beside its requests, at least, so that several lengths of padding can be tried."""


class PaddedTwins:
    """Repeats replayed steps of one engine eagerly, each with a number of padded requests not tried before.

    `most` is how many requests a batch has room for at all, in an engine whose kernels count in a workspace.
    """

    def __init__(self, dummy: Callable[[int], Batch], poison: Poison, padding: Padding, most: int | None) -> None:
        self._dummy = dummy
        self._most = most
        self._poison = poison
        self._padding = padding
        self._tried: dict[int, int] = {}
        self.notes: list[PaddingNote] = []

    def note(self, model: PagedModel, inputs: Batch, memory: PagedMemory, num_live: int, step: int) -> None:
        """Run the step of `inputs`, of which `num_live` are requests, on copies of `memory`: unpadded and padded."""
        size = max(inputs.num_decodes, num_live + MORE_ROWS)
        size = size if self._most is None else min(size, self._most)
        if len(self.notes) >= MAX_NOTES or size == num_live:
            return
        num_padded = self._tried[num_live] = self._tried.get(num_live, 0) % (size - num_live) + 1
        logits = [self._logits(model, inputs, memory, num_live, size, count) for count in (0, num_padded)]
        self.notes.append(PaddingNote(step, num_padded, logits[0], logits[1]))

    def _logits(
        self, model: PagedModel, inputs: Batch, memory: PagedMemory, num_live: int, size: int, num_padded: int
    ) -> Tensor:
        twin = self._dummy(size)
        assert inputs.decode is not None and twin.decode is not None
        if inputs.decode.output is not None:
            twin.decode.output = inputs.decode.output.new_zeros(size, *inputs.decode.output.shape[1:])
        rest = repeated(inputs, num_live, size - num_padded, self._padding.slot)
        fill_static(twin, rest, self._poison, self._padding)
        return model.forward(twin, memory.snapshot()).logits[: num_live * inputs.decode.query_len]


def repeated(inputs: Batch, num_live: int, count: int, slot: int) -> Batch:
    """The first `num_live` requests of a decode batch and then the same again, `count` in all.

    Only the first of each is stored; the others get `slot`, and do not count as live.
    """
    assert inputs.decode is not None
    decode, query_len = inputs.decode, inputs.decode.query_len
    device = inputs.hidden.device
    order = torch.arange(count, device=device) % num_live
    rows = (order[:, None] * query_len + torch.arange(query_len, device=device)).flatten()
    is_first = torch.arange(len(rows), device=device) < num_live * query_len
    return Batch(
        hidden=inputs.hidden[rows],
        positions=inputs.positions[rows],
        slot_mapping=torch.where(is_first, inputs.slot_mapping[rows], slot),
        decode=DecodeInputs(
            block_table=decode.block_table[order],
            seq_lens=decode.seq_lens[order],
            state_blocks=decode.state_blocks[order],
            num_live=decode.num_live,
            output=None,
            metadata=DecodeMetadata(),
            window_table=None if decode.window_table is None else decode.window_table[order],
            query_len=query_len,
        ),
        window_slots=None if inputs.window_slots is None else torch.where(is_first, inputs.window_slots[rows], slot),
    )
