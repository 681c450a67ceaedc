"""Who wrote where nobody may: blocks of the pool that a dummy step changed, and counters that a step left dirty."""

from __future__ import annotations

from collections.abc import Collection

import torch

from harness.engine.memory import PagedMemory
from harness.engine.observations import WriteNote
from harness.engine.schedule.config import NULL_BLOCK
from harness.engine.workspace import GUARD, Workspace


def written_blocks(before: PagedMemory, after: PagedMemory, free: Collection[int], step: int) -> list[WriteNote]:
    """The blocks that differ, after a batch that belongs to nobody ran; `free` are those without an owner."""
    changed = (before.data != after.data).any(dim=-1).any(dim=0).nonzero().flatten().tolist()
    notes = []
    for block in changed:
        site = "kv.null" if block == NULL_BLOCK else "kv.free" if block in free else None
        notes.append(WriteNote(step, f"block {block}", site, before.block(block), after.block(block)))
    return notes


def dirty_workspace(workspace: Workspace | None, num_requests: int, step: int) -> list[WriteNote]:
    """Counters that a step with `num_requests` decodes did not leave zero, and words behind them that it wrote."""
    if workspace is None or not num_requests:
        return []
    counters, guard = workspace.counters(num_requests), workspace.guard
    parts = (("the counters of decode", counters, 0), ("the words behind the counters of decode", guard, GUARD))
    return [
        WriteNote(step, name, "workspace", torch.full_like(words, value)[:, None], words.clone()[:, None])
        for name, words, value in parts
        if bool((words != value).any())
    ]
