"""The ops: each is a folder of `harness/ops` with a `contract.py`. No torch here.

A part of an op has a fixed name in its folder: see `harness/ops/README.md`. It is imported when it
is first used.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from harness.core.contract import Op
from harness.core.files import read_rows
from harness.core.registry import Registry, attribute_at

PAGE_SIZE = 64
"""Slots of a KV page; FlashMLA and FlashInfer MLA read whole pages of 64."""

PartT = TypeVar("PartT")

OPS_FOLDER = Path(__file__).parents[1] / "ops"


@functools.cache
def ops_with(file: str) -> tuple[str, ...]:
    """The names of the ops whose folder has this file, in the order of the alphabet."""
    return tuple(sorted(path.parent.name for path in OPS_FOLDER.glob(f"*/{file}")))


def rows_of_ops(file: str) -> dict[str, Any]:
    """Op -> the rows of its table `file`, for each op that has one."""
    return {op: read_rows(OPS_FOLDER / op / file) for op in ops_with(file)}


SPEED_FILE = "speed.py"
"""The file of an op whose speed can be told: its sizes, and a call of one of them."""


def part_of(op: str, part: str) -> Any:
    """A part of an op, such as "call:prepare": the object in `harness/ops/<op>/call.py`."""
    return attribute_at(f"harness.ops.{op}.{part}")


class PartsOfOps(Mapping[str, PartT]):
    """Op -> a part of it, for each op whose folder has `file`, in the order of the alphabet.

    `load` makes the part of an op when it is first asked for: a case of one op needs no part of
    the others. `others` are names beside those of ops.
    """

    def __init__(
        self, file: str, load: Callable[[str], PartT], others: tuple[str, ...] = ()
    ) -> None:
        self._names = (*ops_with(file), *others)
        self._load = load
        self._found: dict[str, PartT] = {}

    def __getitem__(self, op: str) -> PartT:
        if op not in self._names:
            raise KeyError(op)
        if op not in self._found:
            self._found[op] = self._load(op)
        return self._found[op]

    def __contains__(self, op: object) -> bool:
        return op in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class _Contracts(Registry[Op]):
    """The contract of each op, imported when it is first asked for."""

    def __init__(self) -> None:
        super().__init__("op", family=self._contract)
        self._contracts: Mapping[str, Op] = PartsOfOps(
            "contract.py", lambda op: part_of(op, "contract:CONTRACT")
        )

    def _contract(self, name: str) -> tuple[Op, ...]:
        return (self._contracts[name],) if name in self._contracts else ()

    def names(self) -> list[str]:
        """All ops, in the order of the alphabet."""
        return list(self._contracts)

    def __contains__(self, name: str) -> bool:
        return name in self._contracts

    def get(self, name: str) -> Op:
        """The contract of an op. Raises UnknownNameError with the nearest name."""
        self.add_family(name)
        return super().get(name)

    def __iter__(self) -> Iterator[Op]:
        return iter(self._contracts.values())

    def __len__(self) -> int:
        return len(self._contracts)


def latent_rank(head_dim: int) -> int:
    """R of a latent of D = R + E elements: the largest power of two below D (512 of 576).

    A kernel knows only D.
    """
    return 1 << ((head_dim - 1).bit_length() - 1)


OPS: Registry[Op] = _Contracts()
"""The contract of each op."""
