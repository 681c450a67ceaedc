"""Captured graphs on any device: a replay repeats launches on the addresses of the capture.

A replay runs no Python, allocates nothing, and does not see a tensor that replaced a captured one.
A graph's memory belongs to its pool. Its results are valid until another replay in the pool.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import Tensor

from harness.core.errors import InputError
from harness.memory.poison.patterns import Poison


def tensors_of(value: Any) -> list[Tensor]:
    """The tensors in a nested result, in order: items of tuples and lists, and attributes of
    metadata objects.
    """
    found: list[Tensor] = []
    _collect(value, found)
    return found


def _collect(value: Any, found: list[Tensor]) -> None:
    """Add the tensors in `value`.

    A capture asks for each op, where torch's own walk costs ten times as much.
    """
    if isinstance(value, Tensor):
        found.append(value)
    elif isinstance(value, (tuple, list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            _collect(item, found)
    else:
        found += [
            item for item in getattr(value, "__dict__", {}).values() if isinstance(item, Tensor)
        ]


def storage_address(tensor: Tensor) -> int:
    """The first address of the storage of a tensor of any shape."""
    return tensor.untyped_storage().data_ptr()


def use_count(tensor: Tensor) -> int:
    """The number of tensors, of any shape, that share this tensor's storage."""
    storage = tensor.untyped_storage()
    # The storage object itself counts once.
    return int(torch._C._storage_Use_Count(storage._cdata)) - 1


def whole_storage(tensor: Tensor) -> Tensor:
    """All memory of a tensor's storage as one tensor [n] of its dtype, gaps of strides included."""
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage())


def alias_of(tensor: Tensor) -> Tensor:
    """A second tensor on the same memory, shape and strides.

    It keeps the storage alive, not the first tensor.
    """
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(
        tensor.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride()
    )


class Graph(Protocol):
    """A captured sequence of launches. `outputs` is the result of the captured function."""

    outputs: Any
    stale_reads: list[str]
    """What the parts of the newest replay read although no tensor owned it, and who wrote it last.
    """

    def replay(self) -> None:
        """Repeat every launch on the memory of the capture."""

    def tensor_at(self, address: int) -> Tensor | None:
        """The tensor that the graph uses at `address` (a `data_ptr`), or None."""

    def owned_memory(self) -> list[Tensor]:
        """The storages that the capture allocated and that are still in use."""


class GraphPool(ABC):
    """Graphs that share memory, and the poison for this memory between two replays.

    Without the site `graph.pool` in the poison, memory stays as it is.
    """

    def __init__(self, poison: Poison | None = None) -> None:
        is_used = poison is not None and not poison.is_natural and poison.covers("graph.pool")
        self._poison = poison if is_used else None
        self._aliases: dict[int, list[Tensor]] = {}
        self._foreign: dict[int, Tensor] = {}
        self._dirty: list[Graph] = []
        self._filled: set[int] = set()
        """The storages that hold poison, as far as the parts of graphs did not write them since."""

    @abstractmethod
    def capture(self, function: Callable[[], Any]) -> Graph:
        """Capture the launches of `function`.

        Raises CaptureError for a function that no graph can hold.
        """

    def capture_in_parts(
        self, function: Callable[[], Any], name: str, keep: Callable[[int, Any], Any]
    ) -> Graph:
        """Capture `function` as segments, with its calls of `eager_part` between them.

        Reports call the graph `name`.

        `keep` takes the number and the result of each eager part, and returns the tensors that the
        next segment reads. Each replay copies the new result there.
        """
        raise InputError("graph breakable is simulated on a CPU; on a GPU use graph full")

    def add(self, aliases: Iterable[Tensor], owned: Iterable[int] = ()) -> None:
        """Keep the aliases of a new graph, of any shape.

        It allocated the storages at the addresses `owned` itself.
        """
        for alias in aliases:
            address = storage_address(alias)
            self._aliases.setdefault(address, []).append(alias)
            if address not in owned:
                self._foreign.setdefault(address, alias)

    def mark_written(self, graph: Graph) -> None:
        """Note that `graph` ran, so that the next sweep fills its memory."""
        if graph not in self._dirty:
            self._dirty.append(graph)

    def sweep(self) -> None:
        """Fill all memory that may be reused between replays: of graphs that ran, and foreign
        memory without users.
        """
        if self._poison is None:
            return
        for graph in self._dirty:
            for memory in graph.owned_memory():
                self._fill(memory)
        self._dirty.clear()
        for address, alias in self._foreign.items():
            if use_count(alias) == len(self._aliases[address]):
                self._fill(whole_storage(alias))

    def _fill(self, memory: Tensor) -> None:
        """Fill a storage [n], if the poison is for graphs."""
        if self._poison is not None:
            self._poison.fill_(memory, "graph.pool")
            self._filled.add(storage_address(memory))
