"""A captured graph without a GPU: a recording of ATen ops and kernel launches on the captured
tensors.

A replay repeats each op and copies its result to the captured memory; views are not repeated. The
recording holds its own aliases of all tensors. So it keeps memory as a graph keeps addresses: it
does not follow rebound objects, and it knows when a storage has no other user. Unlike a CUDA
capture, a CPU capture runs the ops.

A capture in parts is a breakable graph: segments, and eager parts between them that a replay calls
again. It keeps no tensor alive. Memory of a segment belongs to the replay as long as a tensor owned
it in the capture. Results of eager parts are ordinary memory, which belongs to its owner alone. A
replay fills the rest in front of each part.
"""

from __future__ import annotations

import copy
import functools
import itertools
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from torch_poison.allocations import ALLOCATIONS, QuickDispatch
from torch_poison.patterns import Poison
from torch_poison.storages import storage_address, tensors_of, whole_storage

from harness.core.errors import CaptureError
from harness.memory.graph.interface import GraphPool, alias_of, use_count
from harness.memory.graph.launch import ACTIVE, IN_PARTS, Function, holding, repeat

_aten = torch.ops.aten
_INDEXED = frozenset({_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default})
_PLAIN = {
    type(None),
    bool,
    int,
    float,
    str,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
}
"""Types of arguments that hold no tensor."""
_HOST_TAGS = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


@dataclass(frozen=True, slots=True)
class _Node:
    """One op or launch to repeat. Its results are copied to `outputs`, the captured memory."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: list[Tensor]

    def run(self) -> None:
        results = tensors_of(repeat(self.function, self.args, self.kwargs))
        if len(results) != len(self.outputs):
            raise CaptureError(
                f"{self.name} returned {len(self.outputs)} tensors when captured, now"
                f" {len(results)}"
            )
        for recorded, result in zip(self.outputs, results, strict=True):
            # An op in place returns its argument: there is nothing to copy.
            if storage_address(recorded) != storage_address(result):
                if recorded.shape != result.shape:
                    raise CaptureError(
                        f"{self.name} returned shape {list(recorded.shape)} when captured, now"
                        f" {list(result.shape)}"
                    )
                # A GPU writes its results at the captured addresses. Here the op made new memory,
                # and its content is moved there.
                recorded.copy_(result)

    def reads(self) -> Iterator[Tensor]:
        """The tensors that it takes, without the ones that an op only writes."""
        # An output given as `out=` is written and not read, so an unowned one is no stale read.
        written: set[str | int] = set()
        if isinstance(self.function, torch._ops.OpOverload):
            arguments = enumerate(self.function._schema.arguments)
            written = {
                key
                for n, a in arguments
                if a.alias_info and a.alias_info.is_write
                for key in (n, a.name)
            }
        for key, value in itertools.chain(enumerate(self.args), self.kwargs.items()):
            if key not in written:
                yield from tensors_of(value)


@dataclass(slots=True)
class _Part:
    """A segment of a graph, or one eager part.

    `reads` names each storage that it reads and that none of its own nodes wrote before. `freed`
    are the storages of segments that have no owner any more where it starts.
    """

    name: str
    nodes: list[_Node]
    freed: list[Tensor] = field(default_factory=list)
    reads: dict[int, str] = field(default_factory=dict)
    writes: set[int] = field(default_factory=set)

    def note_accesses(self, made: dict[int, str]) -> None:
        """Note what the nodes read and write.

        `made` names the storages that the graph has made so far.
        """
        for node in self.nodes:
            for tensor in node.reads():
                address = storage_address(tensor)
                # Memory from before the capture has an owner outside. What the part wrote itself is
                # no other part's.
                if address in made and address not in self.writes:
                    self.reads.setdefault(address, made[address])
            for tensor in node.outputs:
                made.setdefault(
                    storage_address(tensor), f"the result {list(tensor.shape)} of {node.name}"
                )
                self.writes.add(storage_address(tensor))


class CpuGraphPool(GraphPool):
    """Recordings that share memory."""

    def __init__(self, poison: Poison | None = None) -> None:
        super().__init__(poison)
        self._writers: dict[int, str] = {}

    def capture(self, function: Callable[[], Any]) -> CpuGraph:
        """Run `function` once and record its ops and launches.

        Raises CaptureError if it reads a device value on the host outside a launch, or copies from
        the host.
        """
        return self._record(_Recorder(), function)

    def capture_in_parts(
        self, function: Callable[[], Any], name: str, keep: Callable[[int, Any], Any]
    ) -> CpuGraph:
        recorder = _PartRecorder(name, keep)
        with holding(IN_PARTS, recorder):
            return self._record(recorder, function)

    def _record(self, recorder: _Recorder, function: Callable[[], Any]) -> CpuGraph:
        with holding(ACTIVE, recorder), torch.no_grad(), recorder:
            outputs = function()
        parts = recorder.parts()
        aliases, owned = recorder.finish()
        graph = CpuGraph(self, parts, aliases, owned, outputs)
        self.add(aliases, owned)
        self.mark_written(graph)
        return graph

    def run(self, part: _Part) -> list[str]:
        """Fill what has no owner, and run a part. Returns what it read of filled memory."""
        # Each part starts over poison in the memory that no tensor owns, as a private pool is free
        # for reuse.
        self.sweep()
        for memory in part.freed:
            self._fill(memory)
        stale = [
            f"{part.name} read {what}, which no tensor owned;"
            f" {self._writers.get(address, 'the capture')} wrote it last"
            for address, what in part.reads.items()
            if address in self._filled
        ]
        for node in part.nodes:
            node.run()
        # Read only after the nodes ran: a part may read memory first and write it later, which is
        # stale all the same.
        self._filled -= part.writes
        self._writers |= dict.fromkeys(part.writes, part.name)
        return stale


class CpuGraph:
    """One recording, made by a pool's `capture`.

    `outputs` is the result of the captured function.
    """

    def __init__(
        self,
        pool: CpuGraphPool,
        parts: list[_Part],
        aliases: list[Tensor],
        owned: set[int],
        outputs: Any,
    ) -> None:
        self._pool = pool
        self._parts = parts
        self._aliases = aliases
        # Reversed, so that the first alias of a storage is the one that stays.
        first_of = {storage_address(alias): alias for alias in reversed(aliases)}
        self._owned_memory = [whole_storage(first_of[address]) for address in sorted(owned)]
        self.outputs = outputs
        self.stale_reads: list[str] = []

    def owned_memory(self) -> list[Tensor]:
        """The storages that the capture allocated."""
        return self._owned_memory

    @property
    def launches(self) -> list[str]:
        """The names of the ops and launches of a replay, in order."""
        return [node.name for part in self._parts for node in part.nodes]

    def replay(self) -> None:
        """Repeat the recording. `outputs` hold its results until the next replay in the pool."""
        with torch.no_grad():
            self.stale_reads = [stale for part in self._parts for stale in self._pool.run(part)]
        self._pool.mark_written(self)

    def tensor_at(self, address: int) -> Tensor | None:
        """The tensor that the recording uses at `address`, or None."""
        return next((alias for alias in self._aliases if alias.data_ptr() == address), None)


class _Recorder(QuickDispatch, TorchDispatchMode):
    """Records the ops and launches of a capture."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.nodes: list[_Node] = []
        self._alias_of: dict[int, tuple[weakref.ref[Tensor], Tensor]] = {}
        # Aliases of each storage keep its address from being used twice. They do not keep the
        # captured tensors.
        self._aliases: dict[int, list[Tensor]] = {}
        # Storages allocated during the capture, also temporary ones of a launch.
        self._made: set[int] = set()
        self._owned: set[int] = set()
        # Storages of Python scalars: a launch takes them by value, so their memory is never reused.
        self._scalars: set[int] = set()
        self._paused = False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if self._paused:
            return self._note_made(func(*args, **kwargs), args, kwargs)
        _refuse_host_reads(func, args)
        recorded_args = self._aliased(args)
        recorded_kwargs = self._aliased(kwargs)
        result = self._note_made(func(*args, **kwargs), args, kwargs)
        # It makes a tensor of a Python number.
        if func is _aten.lift_fresh.default:
            self._scalars.add(storage_address(result))
        outputs = self._results(result)
        # A graph has kernels alone. An allocation or a view is an address that its kernels already
        # know.
        if func not in ALLOCATIONS and not _is_view(func):
            self.nodes.append(_Node(str(func), func, recorded_args, recorded_kwargs, outputs))
        return result

    def launch(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if self._paused:
            return function(*args, **kwargs)
        recorded_args = self._aliased(args)
        recorded_kwargs = self._aliased(kwargs)
        # A launch is one node, whatever ops its stand-in needs: a pause records none of them.
        self._paused = True
        try:
            result = function(*args, **kwargs)
        finally:
            self._paused = False
        self.nodes.append(
            _Node(
                _name_of(function), function, recorded_args, recorded_kwargs, self._results(result)
            )
        )
        return result

    def parts(self) -> list[_Part]:
        return [_Part("", self.nodes)]

    def finish(self) -> tuple[list[Tensor], set[int]]:
        """The aliases to hold, and the storage addresses allocated by the recording."""
        aliases = [
            one
            for address, held in self._aliases.items()
            if address not in self._scalars
            for one in held
        ]
        return aliases, self._owned

    def _aliased(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._alias(value)
        if type(value) in (tuple, list):
            return type(value)([self._aliased(item) for item in value])
        if type(value) is dict:
            return {name: self._aliased(item) for name, item in value.items()}
        return value if type(value) in _PLAIN else tree_map(self._alias_leaf, value)

    def _alias_leaf(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._alias(value)
        held = getattr(value, "__dict__", {})
        if not any(isinstance(item, Tensor) for item in held.values()):
            return value
        # An object with tensors, such as a plan. The recording gets a copy with aliases: a graph
        # must not follow an attribute that is bound to another tensor later
        # (vllm-project/vllm#35175).
        twin = copy.copy(value)
        for name, item in held.items():
            if isinstance(item, Tensor):
                # The object may be a frozen dataclass.
                object.__setattr__(twin, name, self._alias_leaf(item))
        return twin

    def _results(self, result: Any) -> list[Tensor]:
        tensors = tensors_of(result)
        # A kernel may return a buffer from before the capture.
        self._owned |= {storage_address(tensor) for tensor in tensors} & self._made
        return [self._alias(tensor) for tensor in tensors]

    def _note_made(self, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Note the storages that an op allocated: in its results, but not in its arguments."""
        if new := {storage_address(tensor) for tensor in tensors_of(result)} - self._made:
            self._made |= new - {storage_address(tensor) for tensor in tensors_of((args, kwargs))}
        return result

    def _alias(self, tensor: Tensor) -> Tensor:
        known = self._alias_of.get(id(tensor))
        # An id is reused when its tensor died, so the reference is compared too.
        if known is not None and known[0]() is tensor:
            return known[1]
        paused = self._paused
        self._paused = True
        # Its own ops are none of the program's.
        alias = alias_of(tensor)
        self._paused = paused
        self._alias_of[id(tensor)] = weakref.ref(tensor), alias
        # The alias keeps the storage, and with it the address, for as long as the graph lives.
        self._aliases.setdefault(storage_address(tensor), []).append(alias)
        return alias


class _PartRecorder(_Recorder):  # type: ignore[no-untyped-call]
    """Records segments, and the eager parts between them."""

    def __init__(self, name: str, keep: Callable[[int, Any], Any]) -> None:
        super().__init__()
        self._name = name
        self._keep = keep
        self._parts: list[_Part] = []
        self._freed: set[int] = set()

    def eager(self, function: Function, args: tuple[Any, ...]) -> Any:
        """End the segment, run `function` and note it as a part of its own."""
        self._end_segment()
        # Its arguments are weak: the aliases say where they are, and do not own them.
        given = tuple(self._alias(value) if isinstance(value, Tensor) else value for value in args)
        freed = [
            a
            for a in self._owned - self._freed
            if use_count(self._aliases[a][0]) <= len(self._aliases[a])
        ]
        self._freed.update(freed)
        number = len(self._parts) // 2
        self._paused = True
        try:
            # An eager part runs Python at each replay, so nothing in it may be recorded.
            with holding(ACTIVE, None):
                result = self._keep(number, function(*args))
        finally:
            self._paused = False
        kept = tensors_of(result)
        # `keep` has copied them into buffers that outlive the graph: the capture does not own them.
        self._made -= {storage_address(tensor) for tensor in kept}
        node = _Node(
            _name_of(function), function, given, {}, [self._alias(tensor) for tensor in kept]
        )
        memory = [whole_storage(self._aliases[address][0]) for address in freed]
        self._parts.append(_Part(f"eager part {number} of {self._name}", [node], memory))
        return result

    def parts(self) -> list[_Part]:
        self._end_segment()
        made: dict[int, str] = {}
        for part in self._parts:
            part.note_accesses(made)
        return self._parts

    def _end_segment(self) -> None:
        self._parts.append(_Part(f"segment {len(self._parts) // 2} of {self._name}", self.nodes))
        self.nodes = []


def _name_of(function: Function) -> str:
    return getattr(function, "__qualname__", type(function).__name__)


def _refuse_host_reads(func: Any, args: tuple[Any, ...]) -> None:
    # A Python number has no dimensions. A kernel takes it by value, which a graph can hold.
    if func is _aten.lift_fresh.default and args[0].ndim:
        raise CaptureError(
            "a tensor is made from host data during capture; make it before and copy into it"
        )
    if func in _INDEXED:
        masks = [
            t for t in args[1] if isinstance(t, Tensor) and t.dtype in (torch.bool, torch.uint8)
        ]
        if masks:
            raise CaptureError(
                f"{func} with a boolean mask has a shape that depends on device values; use"
                " torch.where"
            )
    elif _reads_on_host(func):
        raise CaptureError(
            f"{func} reads a device value on the host, which a captured graph cannot do"
        )


@functools.cache
def _reads_on_host(func: Any) -> bool:
    return any(tag in func.tags for tag in _HOST_TAGS)


@functools.cache
def _is_view(func: Any) -> bool:
    schema = func._schema
    if any(
        argument.alias_info is not None and argument.alias_info.is_write
        for argument in schema.arguments
    ):
        return False
    return bool(schema.returns) and all(
        returned.alias_info is not None for returned in schema.returns
    )


def new_pool(device: torch.device, poison: Poison | None = None) -> GraphPool:
    """A pool for graphs on `device`: CUDA graphs, or recordings on a CPU."""
    if device.type == "cuda":
        from harness.memory.graph.cuda import CudaGraphPool

        return CudaGraphPool(device, poison)
    return CpuGraphPool(poison)
