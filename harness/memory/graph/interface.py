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
from torch_poison.patterns import Poison
from torch_poison.storages import storage_address, whole_storage

from harness.core.errors import InputError


def use_count(tensor: Tensor) -> int:
    """The number of tensors that share the storage of tensor [...] of any dtype, uint8 pools
    included.
    """
    storage = tensor.untyped_storage()
    # The storage object itself counts once.
    return int(torch._C._storage_Use_Count(storage._cdata)) - 1


def alias_of(tensor: Tensor) -> Tensor:
    """A second tensor on the memory of tensor [...], with its dtype (bfloat16 stays bfloat16),
    shape and strides.

    It keeps the storage alive, not the first tensor.
    """
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(
        tensor.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride()
    )


class Graph(Protocol):
    """A captured sequence of launches. `outputs` is the result of the captured function."""

    outputs: Any
    stale_reads: list[str]
    """The memory without an owner that parts of the newest replay read, and who wrote it last."""

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
        """Keep the `aliases` [...] of a new graph, of any dtype: float32 activations, int32
        indices.

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
            # Only graphs of this pool hold it: their aliases are all its users.
            if use_count(alias) == len(self._aliases[address]):
                self._fill(whole_storage(alias))

    def _fill(self, memory: Tensor) -> None:
        """Fill a storage [n], if the poison is for graphs."""
        if self._poison is not None:
            self._poison.fill_(memory, "graph.pool")
            self._filled.add(storage_address(memory))
