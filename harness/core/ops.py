"""The ops: each is a folder of `harness/ops` with a `contract.py`. No torch here.

A part of an op has a fixed name in its folder: see `harness/ops/README.md`. It is imported when it
is first used.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.core.contract import Op
from harness.core.files import read_rows
from harness.core.registry import Registry, attribute_at

PAGE_SIZE = 64
"""Slots of a KV page; FlashMLA and FlashInfer MLA read whole pages of 64."""
SCALED_BLOCK = 128
"""Elements of a row with one scale, as DeepSeek's fp8 activations have them."""

OPS_FOLDER = Path(__file__).parents[1] / "ops"


def ops_with(file: str) -> tuple[str, ...]:
    """The names of the ops whose folder has this file, in the order of the alphabet."""
    return tuple(sorted(path.parent.name for path in OPS_FOLDER.glob(f"*/{file}")))


def rows_of_ops(file: str) -> dict[str, Any]:
    """Op -> the rows of its table `file`, for each op that has one."""
    return {op: read_rows(OPS_FOLDER / op / file) for op in ops_with(file)}


def part_of(op: str, part: str) -> Any:
    """A part of an op, such as "call:prepare": the object in `harness/ops/<op>/call.py`."""
    return attribute_at(f"harness.ops.{op}.{part}")


def aligned_sizes(num_choices: int, num_experts: int, block_size: int) -> tuple[int, int]:
    """The entries and blocks that `align_experts` returns: enough for the worst distribution of
    the choices.
    """
    size = min(num_choices * block_size, num_choices + num_experts * (block_size - 1))
    return size, -(-size // block_size)


def latent_rank(head_dim: int) -> int:
    """R of a latent of D = R + E elements: the largest power of two below D (512 of 576).

    A kernel knows only D.
    """
    return 1 << ((head_dim - 1).bit_length() - 1)


OPS: Registry[Op] = Registry(
    "op", tuple(part_of(op, "contract:CONTRACT") for op in ops_with("contract.py"))
)
"""The contract of each op."""
