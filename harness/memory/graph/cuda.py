"""Captured graphs on a GPU: `torch.cuda.CUDAGraph` behind the same interface as the recordings of a CPU.

CUDA records the launches. What is noted beside it is what a judge must know: which tensors from outside the capture
reads (an alias each, as a recording keeps), and which of those it made are still in use (weak references: what nobody
keeps goes back to the graph's pool during the capture, as in any engine).

Before a replay all memory that may have been reused since the last one is filled: the free blocks of the allocator,
the pool's own among them, outputs of graphs that ran since, and tensors from outside that only the graph still
reads. A real server reuses that memory when its load changes; here it is reused at every step.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from harness.core.errors import CaptureError
from harness.memory.graph.launch import ACTIVE
from harness.memory.graph.storage import storage_address, tensors_of, use_count
from harness.memory.poison.cuda_sweep import CudaSweep, fill_word
from harness.memory.poison.dispatch_mode import QuickDispatch
from harness.memory.poison.patterns import Poison
from harness.memory.poison.storages import alias_of, whole_storage

_streams: dict[int, torch.cuda.Stream] = {}
num_abandoned = 0
"""Captures that failed in this process; after one, a worker is replaced."""


class CudaGraphPool:
    """Graphs that share one private pool of the caching allocator, and the memory that only they use."""

    def __init__(self, device: torch.device, poison: Poison | None = None) -> None:
        self._poison = poison if poison is not None and not poison.is_natural and poison.covers("graph.pool") else None
        self._device = device
        self._handle = torch.cuda.graph_pool_handle()
        self._free = CudaSweep.of(device) if self._poison is not None else None
        self._aliases: dict[int, list[Tensor]] = {}
        self._dirty: list[CudaGraph] = []

    def capture(self, function: Callable[[], Any]) -> CudaGraph:
        """Capture `function`, which must have run once before: kernels are compiled and loaded by then.

        Raises CaptureError when it waits for the device, reads a device value, or copies from pageable host memory.
        """
        recorder, graph = _Recorder(), torch.cuda.CUDAGraph()
        stream = _capture_stream(self._device)
        torch.cuda.synchronize(self._device)
        was_collecting = gc.isenabled()
        # A collection may end another graph, which CUDA forbids in the middle of a capture.
        gc.disable()
        token = ACTIVE.set(recorder)
        try:
            with torch.no_grad(), torch.cuda.stream(stream):
                outputs = _captured(graph, self._handle, recorder, function)
        finally:
            ACTIVE.reset(token)
            if was_collecting:
                gc.enable()
        torch.cuda.current_stream(self._device).wait_stream(stream)
        captured = CudaGraph(self, graph, list(recorder.foreign.values()), recorder.made, outputs)
        for alias in recorder.foreign.values():
            self._aliases.setdefault(storage_address(alias), []).append(alias)
        self.mark_written(captured)
        return captured

    def mark_written(self, graph: CudaGraph) -> None:
        """Note that `graph` ran, so that the next sweep has its memory to fill."""
        if graph not in self._dirty:
            self._dirty.append(graph)

    def sweep(self) -> None:
        """Fill all memory that may be reused between replays; called before each replay of a graph of the pool."""
        if self._poison is None or self._free is None:
            return
        for graph in self._dirty:
            for memory in graph.owned_memory():
                self._poison.fill_(memory, "graph.pool")
        self._dirty.clear()
        for aliases in self._aliases.values():
            if use_count(aliases[0]) == len(aliases):
                self._poison.fill_(whole_storage(aliases[0]), "graph.pool")
        self._free(fill_word(self._poison, "graph.pool"))


class CudaGraph:
    """One captured CUDA graph; `outputs` is what the captured function returned."""

    def __init__(
        self,
        pool: CudaGraphPool,
        graph: torch.cuda.CUDAGraph,
        foreign: list[Tensor],
        made: list[weakref.ref[Tensor]],
        outputs: Any,
    ) -> None:
        self._pool = pool
        self._graph = graph
        self._foreign = foreign
        self._made = made
        self.outputs = outputs

    def replay(self) -> None:
        """Launch the graph on the current stream; `outputs` hold its results until the next replay in the pool."""
        self._pool.sweep()
        self._graph.replay()
        self._pool.mark_written(self)

    def tensor_at(self, address: int) -> Tensor | None:
        """The tensor that the graph uses at `address`, or None."""
        return next((tensor for tensor in (*self._foreign, *self._kept()) if tensor.data_ptr() == address), None)

    def owned_memory(self) -> list[Tensor]:
        """The storages that the capture allocated and that somebody still holds: outputs, and buffers it keeps."""
        first_of = {storage_address(tensor): tensor for tensor in reversed(self._kept())}
        return [whole_storage(tensor) for tensor in first_of.values()]

    def _kept(self) -> list[Tensor]:
        alive = (reference() for reference in self._made)
        return [tensor for tensor in alive if tensor is not None and tensor.numel()]


class _Recorder(QuickDispatch, TorchDispatchMode):
    """Notes which tensors a capture takes from outside, and which it makes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.foreign: dict[tuple[int, int, torch.dtype, torch.Size], Tensor] = {}
        self.made: list[weakref.ref[Tensor]] = []
        self._made_storages: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = {storage_address(tensor) for tensor in tensors_of((args, kwargs or {}))}
        self._note_given((args, kwargs or {}))
        result = func(*args, **(kwargs or {}))
        for tensor in tensors_of(result):
            if not tensor.is_cuda:
                continue
            address = storage_address(tensor)
            if address not in given:
                self._made_storages.add(address)
            if address in self._made_storages:
                self.made.append(weakref.ref(tensor))
        return result

    def launch(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Note what a kernel is given, and call it: CUDA records what it launches."""
        self._note_given((args, kwargs))
        return function(*args, **kwargs)

    def _note_given(self, value: Any) -> None:
        for tensor in tensors_of(value):
            address = storage_address(tensor)
            if not tensor.is_cuda or not address or address in self._made_storages:
                continue
            key = (tensor.data_ptr(), address, tensor.dtype, tensor.shape)
            if key not in self.foreign:
                with torch.utils._python_dispatch._disable_current_modes():
                    self.foreign[key] = alias_of(tensor)


def _captured(graph: torch.cuda.CUDAGraph, handle: Any, recorder: _Recorder, function: Callable[[], Any]) -> Any:
    graph.capture_begin(pool=handle, capture_error_mode="thread_local")
    try:
        with recorder:
            outputs = function()
    except RuntimeError as error:
        _abandon(graph)
        reason = str(error).strip().partition("\n")[0]
        raise CaptureError(f"the step does something that no graph can hold: {reason}") from error
    except BaseException:
        _abandon(graph)
        raise
    graph.capture_end()
    return outputs


def _abandon(graph: torch.cuda.CUDAGraph) -> None:
    """End a capture that failed; what CUDA says then is the echo of the first error.

    torch's generator is left in the middle of the capture, so the process should not go on for long.
    """
    global num_abandoned
    num_abandoned += 1
    try:
        graph.capture_end()
    except RuntimeError:
        return


def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """One side stream a device for all captures: each stream that multiplies matrices costs a workspace."""
    index = torch.cuda.current_device() if device.index is None else device.index
    if index not in _streams:
        _streams[index] = torch.cuda.Stream(index)  # type: ignore[no-untyped-call]
    return _streams[index]
