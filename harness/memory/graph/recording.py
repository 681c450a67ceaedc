"""A captured graph without a GPU: a recording of ATen ops and kernel launches on the tensors that the capture saw.

A replay runs each op again and copies its result to where the capture left it; views are memory already, and are not
repeated. The recording holds its own aliases of every tensor. So it keeps memory as a graph keeps addresses: it does
not follow an object that is rebound later, and it can tell when nobody else holds a storage any more.

A CPU capture differs from a CUDA capture in one point: it executes what it records.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from harness.core.errors import CaptureError
from harness.memory.graph.launch import ACTIVE, repeat
from harness.memory.graph.storage import storage_address, tensors_of, use_count
from harness.memory.poison.allocations import ALLOCATIONS
from harness.memory.poison.dispatch_mode import QuickDispatch
from harness.memory.poison.patterns import Poison
from harness.memory.poison.storages import alias_of, whole_storage

_aten = torch.ops.aten
_INDEXED = frozenset({_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default})
_HOST_TAGS = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


@dataclass(frozen=True, slots=True)
class _Node:
    """One op or launch to repeat; its results go to `outputs`, the memory where the capture put them."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: list[Tensor]

    def run(self) -> None:
        results = tensors_of(repeat(self.function, self.args, self.kwargs))
        if len(results) != len(self.outputs):
            raise CaptureError(f"{self.name} returned {len(self.outputs)} tensors when captured, now {len(results)}")
        for recorded, result in zip(self.outputs, results, strict=True):
            if storage_address(recorded) != storage_address(result):
                if recorded.shape != result.shape:
                    raise CaptureError(
                        f"{self.name} returned shape {list(recorded.shape)} when captured, now {list(result.shape)}"
                    )
                recorded.copy_(result)


class CpuGraphPool:
    """The graphs captured into it, and the memory that only they use.

    `sweep` does what the allocator may do between two replays: it fills with the poison's `graph.pool` whatever the
    pool owns (all that was allocated during captures, outputs included) and memory from outside that nobody but the
    recordings holds. Without that site in the poison, memory stays as it is.
    """

    def __init__(self, poison: Poison | None = None) -> None:
        self._poison = poison if poison is not None and poison.covers("graph.pool") else None
        self._aliases: dict[int, list[Tensor]] = {}
        self._foreign: dict[int, Tensor] = {}
        self._dirty: list[CpuGraph] = []

    def capture(self, function: Callable[[], Any]) -> CpuGraph:
        """Record `function` as a graph of this pool; see CpuGraph.capture."""
        return CpuGraph.capture(function, self)

    def add(self, aliases: list[Tensor], owned: set[int]) -> None:
        """Take over a new recording's aliases; `owned` are the storage addresses it allocated itself."""
        for alias in aliases:
            address = storage_address(alias)
            self._aliases.setdefault(address, []).append(alias)
            if address not in owned:
                self._foreign.setdefault(address, alias)

    def mark_written(self, graph: CpuGraph) -> None:
        """Note that `graph` ran, so that the next sweep has its memory to fill."""
        if graph not in self._dirty:
            self._dirty.append(graph)

    def sweep(self) -> None:
        """Fill all memory that may be reused between replays; called before each replay of a graph of the pool."""
        if self._poison is None:
            return
        for graph in self._dirty:
            for memory in graph.owned_memory:
                self._poison.fill_(memory, "graph.pool")
        self._dirty.clear()
        for address, alias in self._foreign.items():
            if use_count(alias) == len(self._aliases[address]):
                self._poison.fill_(whole_storage(alias), "graph.pool")


class CpuGraph:
    """One recording. Make it with `capture`; `outputs` is what the captured function returned."""

    def __init__(self, pool: CpuGraphPool, nodes: list[_Node], aliases: list[Tensor], owned: set[int]) -> None:
        self._pool = pool
        self._nodes = nodes
        self._aliases = aliases
        first_of = {storage_address(alias): alias for alias in reversed(aliases)}
        self.owned_memory = [whole_storage(first_of[address]) for address in sorted(owned)]
        self.outputs: Any = None

    @classmethod
    def capture(cls, function: Callable[[], Any], pool: CpuGraphPool) -> CpuGraph:
        """Run `function` once and record what it does to tensors.

        Raises CaptureError when it reads a device value on the host outside a launch, or copies from the host.
        """
        recorder = _Recorder()
        token = ACTIVE.set(recorder)
        try:
            with torch.no_grad(), recorder:
                outputs = function()
        finally:
            ACTIVE.reset(token)
        aliases, owned = recorder.finish()
        graph = cls(pool, recorder.nodes, aliases, owned)
        graph.outputs = outputs
        pool.add(aliases, owned)
        pool.mark_written(graph)
        return graph

    @property
    def launches(self) -> list[str]:
        """Names of what a replay runs, in order."""
        return [node.name for node in self._nodes]

    def replay(self) -> None:
        """Repeat the recording; `outputs` then hold this replay's results, until the next replay in the pool."""
        self._pool.sweep()
        with torch.no_grad():
            for node in self._nodes:
                node.run()
        self._pool.mark_written(self)

    def tensor_at(self, address: int) -> Tensor | None:
        """The tensor that the recording uses at `address`, or None."""
        return next((alias for alias in self._aliases if alias.data_ptr() == address), None)


class _Recorder(QuickDispatch, TorchDispatchMode):
    """Notes what passes by while a capture is in progress."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.nodes: list[_Node] = []
        self._alias_of: dict[int, Tensor] = {}
        # Originals stay alive during the capture, so that neither an id nor an address is used twice.
        self._originals: list[Any] = []
        # Storages allocated since the capture began, also those that a launch made and let go.
        self._made: set[int] = set()
        self._owned: set[int] = set()
        # Storages of Python scalars: a launch takes them by value, so nobody can reuse their memory.
        self._scalars: set[int] = set()
        self._paused = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._paused:
            return self._note_made(func(*args, **kwargs), args, kwargs)
        _refuse_host_reads(func, args)
        recorded_args, recorded_kwargs = self._aliased(args), self._aliased(kwargs)
        result = self._note_made(func(*args, **kwargs), args, kwargs)
        if func is _aten.lift_fresh.default:
            self._scalars.add(storage_address(result))
        outputs = self._results(result)
        if func not in ALLOCATIONS and not _is_view(func):
            self.nodes.append(_Node(str(func), func, recorded_args, recorded_kwargs, outputs))
        return result

    def launch(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run `function` unseen and record it as one node."""
        if self._paused:
            return function(*args, **kwargs)
        recorded_args, recorded_kwargs = self._aliased(args), self._aliased(kwargs)
        self._paused = True
        try:
            result = function(*args, **kwargs)
        finally:
            self._paused = False
        name = getattr(function, "__qualname__", type(function).__name__)
        self.nodes.append(_Node(name, function, recorded_args, recorded_kwargs, self._results(result)))
        return result

    def finish(self) -> tuple[list[Tensor], set[int]]:
        """The aliases held from now on, and the storage addresses allocated by the recording."""
        self._originals.clear()
        aliases = [alias for alias in self._alias_of.values() if storage_address(alias) not in self._scalars]
        return aliases, self._owned

    def _aliased(self, value: Any) -> Any:
        """`value` with each tensor replaced by the recording's own alias; metadata objects are copied for that."""
        return tree_map(self._alias_leaf, value)

    def _alias_leaf(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._alias(value)
        held = getattr(value, "__dict__", {})
        if not any(isinstance(item, Tensor) for item in held.values()):
            return value
        twin = copy.copy(value)
        for name, item in held.items():
            if isinstance(item, Tensor):
                object.__setattr__(twin, name, self._alias_leaf(item))
        return twin

    def _results(self, result: Any) -> list[Tensor]:
        tensors = tensors_of(result)
        # A buffer that a kernel keeps from before the capture is returned, but not made.
        self._owned |= {storage_address(tensor) for tensor in tensors} & self._made
        return [self._alias(tensor) for tensor in tensors]

    def _note_made(self, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Note the storages that an op allocated: those of its results that are none of its arguments'."""
        given = {storage_address(tensor) for tensor in tensors_of((args, kwargs))}
        self._made |= {storage_address(tensor) for tensor in tensors_of(result)} - given
        return result

    def _alias(self, tensor: Tensor) -> Tensor:
        alias = self._alias_of.get(id(tensor))
        if alias is None:
            self._paused, paused = True, self._paused
            alias = alias_of(tensor)
            self._paused = paused
            self._alias_of[id(tensor)] = alias
            self._originals.append(tensor)
        return alias


def _refuse_host_reads(func: Any, args: tuple[Any, ...]) -> None:
    if func is _aten.lift_fresh.default and args[0].ndim:
        raise CaptureError("a tensor is made from host data during capture; make it before and copy into it")
    if func in _INDEXED:
        masks = [t for t in args[1] if isinstance(t, Tensor) and t.dtype in (torch.bool, torch.uint8)]
        if masks:
            raise CaptureError(f"{func} with a boolean mask has a shape that depends on device values; use torch.where")
    elif any(tag in func.tags for tag in _HOST_TAGS):
        raise CaptureError(f"{func} reads a device value on the host, which a captured graph cannot do")


def _is_view(func: Any) -> bool:
    """Whether `func` only gives another look at its argument's memory."""
    schema = func._schema
    if any(argument.alias_info is not None and argument.alias_info.is_write for argument in schema.arguments):
        return False
    return bool(schema.returns) and all(returned.alias_info is not None for returned in schema.returns)
