"""Legal changes of one part of the inputs of a call: one row of a tensor, or one entry of a table.

They answer whether a kernel reads what it is given.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch_poison.patterns import bits_view

from harness.core.contract import Arg, Op
from harness.ops.parts.inputs import OpInputs

TABLES = ("block_table",)
"""Arguments in which another entry of the same table may stand in each place."""
MOST_ROWS = 1 << 20
"""A tensor with more rows is a pool that no case changes."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the argument `name`; the `number` says which row or entry."""

    name: str
    number: int


def changes(op: Op, each: int) -> list[Change]:
    """`each` changes of each argument that the op only reads, and that may change alone."""
    names = [name for name, argument in op.arguments.items() if _may_change(name, argument)]
    return [Change(name, number) for name in names for number in range(each)]


def _may_change(name: str, argument: Arg) -> bool:
    return not argument.is_written and (
        name in TABLES or argument.dtype in ("activation", "cache", "float32", "bfloat16")
    )


def change_(raw: OpInputs, change: Change, seed: int) -> str:
    """Make a change of inputs in place, before their memory without an owner is poisoned.

    Returns what changed, such as "kv_cache[3, 17]"; empty if the argument has nothing to change.
    """
    tensor: Tensor = getattr(raw, change.name)
    # The numbers of one argument draw different rows, and the same ones when the case runs again.
    generator = torch.Generator().manual_seed(seed * 31 + change.number)
    if change.name in TABLES:
        return _swap_entry(change.name, tensor, generator)
    is_number = tensor.dtype.is_floating_point
    if not is_number or tensor.ndim < 2 or tensor[..., 0].numel() > MOST_ROWS:
        return ""
    # Memory without an owner holds zeros until it is poisoned, so these rows are live.
    live = bits_view(tensor).ne(0).any(-1).nonzero()
    if not len(live):
        return ""
    row = tuple(live[int(torch.randint(len(live), (1,), generator=generator))].tolist())
    bits = bits_view(tensor[row])
    # The sign of each element: another value of the same size, in every type.
    bits.bitwise_xor_(torch.iinfo(bits.dtype).min if bits.dtype != torch.uint8 else 0x80)
    return f"{change.name}[{', '.join(map(str, row))}]"


def _swap_entry(name: str, table: Tensor, generator: torch.Generator) -> str:
    live = table.ne(0).nonzero()
    order = torch.randperm(len(live), generator=generator).tolist()
    for one in order:
        place = tuple(live[one].tolist())
        for other in order:
            value = table[tuple(live[other].tolist())]
            if value != table[place]:
                table[place] = value
                return f"{name}[{', '.join(map(str, place))}]"
    return ""
