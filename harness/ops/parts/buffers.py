"""Buffers of outputs that a kernel may take, and the trap of a block table."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from harness.ops.parts.call import Guarded, KernelCall, Setting


def with_trap(setting: Setting, block: int) -> Setting:
    """Poison whose trap for padded entries of a table is `block`."""
    traps = {**setting.poison.traps, "block_table.pad": block}
    return replace(setting, poison=replace(setting.poison, traps=traps))


def give_buffer(
    call: KernelCall, setting: Setting, buffer: Tensor, before: Tensor, rows: int
) -> None:
    """Give a kernel that takes `out` the first rows of a buffer [more rows, K], and guard the
    others.

    buffer [R, K] int32 has at least `rows` rows; before [R, K] int32 is its content before the
    call.
    """
    if "out" in setting.spec.takes:
        call.kwargs["out"] = buffer[:rows]
        call.guarded.append(
            Guarded("rows behind out", "sparse.topk", before[rows:], lambda: buffer[rows:])
        )
