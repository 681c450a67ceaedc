"""Writes where no step may write: the null block, blocks without an owner, the workspace.

And blocks not zeroed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

from harness.engine.batch import Batch, Padding
from harness.engine.kernels import GUARD, Workspace
from harness.engine.memory import PagedMemory
from harness.engine.paged_model import PagedModel
from harness.engine.probe import Probe
from harness.engine.schedule.block_pool import BlockPool
from harness.engine.schedule.config import NULL_BLOCK
from harness.engine.schedule.sequence import ScheduledSequence, Sequence, Step
from harness.evidence.sentinel import Guard
from harness.evidence.zeroed import ZeroedBlock


class StrayWrites(Probe):
    """`written` are the stray writes, `zeroed` the blocks that the scheduler listed for zeroing,
    before their step.
    """

    def __init__(self) -> None:
        self.written: list[Guard] = []
        self.zeroed: list[ZeroedBlock] = []
        self._step = -1
        self._sequences: list[Sequence] = []

    def on_start(
        self, model: PagedModel, memory: PagedMemory, pool: BlockPool, padding: Padding
    ) -> None:
        self._workspace = model.kernels.workspace
        self._memory = memory
        self._pool = pool
        self._trash_block = padding.trash_block
        # Before warm-ups and captures. The null block must never change.
        self._null_block = memory.block(NULL_BLOCK)

    def guards(self) -> list[Guard]:
        after = self._memory.block(NULL_BLOCK)
        return [
            Guard("the null block", "kv.null", self._null_block.cpu(), after.cpu()),
            *self.written,
        ]

    def before_step(self, step: Step) -> None:
        self._step += 1
        for block in step.blocks_to_zero:
            content = self._memory.block(block)
            self.zeroed.append(
                ZeroedBlock(self._step, block, content.numel(), int(content.count_nonzero()))
            )

    @contextlib.contextmanager
    def on_step(self, ordered: list[ScheduledSequence], batch: Batch) -> Iterator[None]:
        self._num_counted = batch.num_decodes
        self._sequences = [item.sequence for item in ordered]
        yield
        self.written += dirty_workspace(self._workspace, self._num_counted)

    @contextlib.contextmanager
    def on_replay(self, inputs: Batch) -> Iterator[None]:
        """A replay counts its padded requests as well."""
        self._num_counted = inputs.num_decodes
        yield

    @contextlib.contextmanager
    def on_dummy_step(self) -> Iterator[None]:
        # The whole pool: a dummy step has no request, so it may write nowhere but to the block of
        # padding.
        before = self._memory.data.clone()
        yield
        self.written += self._changed_blocks(before)

    def _changed_blocks(self, before: Tensor) -> Iterator[Guard]:
        """The blocks that differ from `before` [slots, N, block_bytes] uint8, without the block of
        padding.
        """
        after = self._memory.data
        changed = (before != after).any(dim=-1).any(dim=0).nonzero().flatten().tolist()
        free = set(self._pool.free_blocks)
        for block in (block for block in changed if block != self._trash_block):
            site = "kv.null" if block == NULL_BLOCK else "kv.free" if block in free else None
            name = f"block {block}{self._owner(block)}"
            yield Guard(
                name, site, before[:, block].cpu(), after[:, block].clone().cpu(), self._layers_of
            )

    def _owner(self, block: int) -> str:
        """The owner of a block among the requests of the last step, in words; empty without one."""
        owned = (
            (one, (*one.blocks, *one.window_blocks, one.state_block)) for one in self._sequences
        )
        return next((f" of request {one.request}" for one, blocks in owned if block in blocks), "")

    def _layers_of(self, slot: int) -> str:
        """The layers with a slot of the pool, in words.

        A drafter's layer comes behind the model's.
        """
        layers = (
            str(layer) for layer, own in enumerate(self._memory.layout.slot_of_layer) if own == slot
        )
        return f"layer {' or '.join(layers)}"


def dirty_workspace(workspace: Workspace | None, num_requests: int) -> list[Guard]:
    """Counters that a step with `num_requests` decodes left dirty, and guard words that it
    overwrote.
    """
    if workspace is None or not num_requests:
        return []
    counters = workspace.counters(num_requests)
    guard = workspace.words[workspace.num_requests :]
    parts = (
        ("the counters of decode", counters, 0),
        ("the words behind the counters of decode", guard, GUARD),
    )
    return [
        Guard(
            name,
            "workspace",
            torch.full_like(words, value)[:, None].cpu(),
            words.clone()[:, None].cpu(),
        )
        for name, words, value in parts
        if bool((words != value).any())
    ]
