"""Captured graphs on a GPU: `torch.cuda.CUDAGraph` with the interface of a CPU's recordings.

CUDA records the launches. The harness notes the foreign tensors that a capture reads (as aliases),
and the tensors that it makes (as weak references: unused ones return to the graph's pool, as in any
engine).

Before a replay all memory that may have been reused is filled: free blocks of the allocator and of
the pool, outputs of graphs that ran, and foreign tensors that only the graph still reads. A real
server reuses it when its load changes.
"""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch_poison.allocations import QuickDispatch
from torch_poison.cuda_sweep import CudaSweep, fill_word
from torch_poison.patterns import Poison
from torch_poison.storages import storage_address, tensors_of, whole_storage

from harness.core import cuda_failures
from harness.core.errors import CaptureError, message_of
from harness.memory.graph.interface import GraphPool, alias_of
from harness.memory.graph.launch import ACTIVE, holding

_streams: dict[int, torch.cuda.Stream] = {}


class CudaGraphPool(GraphPool):
    """Graphs that share one private pool of the caching allocator."""

    def __init__(self, device: torch.device, poison: Poison | None = None) -> None:
        super().__init__(poison)
        self._device = device
        self._handle = torch.cuda.graph_pool_handle()
        self._free = CudaSweep.of(device) if self._poison is not None else None

    def capture(self, function: Callable[[], Any]) -> CudaGraph:
        """Capture `function`, which must have run before, so that its kernels are compiled and
        loaded.

        Raises CaptureError if it waits for the device, reads a device value, or copies from
        pageable host memory.
        """
        recorder = _Recorder()
        graph = torch.cuda.CUDAGraph()
        stream = _capture_stream(self._device)
        # The capture runs on a stream of its own, which does not wait for the inputs' writers.
        torch.cuda.synchronize(self._device)
        was_collecting = gc.isenabled()
        # A collection may free another graph, which CUDA forbids during a capture.
        gc.disable()
        try:
            with holding(ACTIVE, recorder), torch.no_grad(), torch.cuda.stream(stream):
                outputs = _captured(graph, self._handle, recorder, function)
        finally:
            if was_collecting:
                gc.enable()
        # The caller's stream goes on behind the capture, which ran on a stream of its own.
        torch.cuda.current_stream(self._device).wait_stream(stream)
        captured = CudaGraph(self, graph, list(recorder.foreign.values()), recorder.made, outputs)
        self.add(recorder.foreign.values())
        self.mark_written(captured)
        return captured

    def sweep(self) -> None:
        """As for any pool, and fill the allocator's free blocks."""
        super().sweep()
        if self._poison is not None and self._free is not None:
            self._free(fill_word(self._poison, "graph.pool"))


@dataclass(slots=True, eq=False)
class CudaGraph:
    """One captured CUDA graph. `outputs` is the result of the captured function."""

    _pool: CudaGraphPool
    _graph: torch.cuda.CUDAGraph
    _foreign: list[Tensor]
    _made: list[weakref.ref[Tensor]]
    outputs: Any
    stale_reads: list[str] = field(default_factory=list)

    def replay(self) -> None:
        """Launch the graph on the current stream.

        `outputs` hold its results until the next replay in the pool.
        """
        # Memory of the pool that nothing owns is free between replays, and may have been given to
        # others.
        self._pool.sweep()
        self._graph.replay()
        self._pool.mark_written(self)

    def tensor_at(self, address: int) -> Tensor | None:
        """The tensor that the graph uses at `address`, or None."""
        return next(
            (tensor for tensor in (*self._foreign, *self._kept()) if tensor.data_ptr() == address),
            None,
        )

    def owned_memory(self) -> list[Tensor]:
        """The storages that the capture allocated and that are still in use: outputs, and kept
        buffers.
        """
        first_of = {storage_address(tensor): tensor for tensor in reversed(self._kept())}
        return [whole_storage(tensor) for tensor in first_of.values()]

    def _kept(self) -> list[Tensor]:
        alive = (reference() for reference in self._made)
        return [tensor for tensor in alive if tensor is not None and tensor.numel()]


class _Recorder(QuickDispatch, TorchDispatchMode):
    """Notes the foreign tensors of a capture, and the tensors that it makes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.foreign: dict[tuple[int, int, torch.dtype, torch.Size], Tensor] = {}
        self.made: list[weakref.ref[Tensor]] = []
        self._made_storages: set[int] = set()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given = {storage_address(tensor) for tensor in tensors_of((args, kwargs or {}))}
        self._note_given((args, kwargs or {}))
        result = func(*args, **(kwargs or {}))
        for tensor in tensors_of(result):
            if not tensor.is_cuda:
                continue
            address = storage_address(tensor)
            # Results that are views or arguments belong to whoever owned them before.
            if address not in given:
                self._made_storages.add(address)
            if address in self._made_storages:
                self.made.append(weakref.ref(tensor))
        return result

    def launch(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Note the tensors of a kernel call, and run it: CUDA records its launches."""
        self._note_given((args, kwargs))
        return function(*args, **kwargs)

    def _note_given(self, value: Any) -> None:
        for tensor in tensors_of(value):
            address = storage_address(tensor)
            if not tensor.is_cuda or not address or address in self._made_storages:
                continue
            key = (tensor.data_ptr(), address, tensor.dtype, tensor.shape)
            if key not in self.foreign:
                with _disable_current_modes():
                    # An alias keeps the memory alive, as a graph that reads freed memory is another
                    # bug than the one sought.
                    self.foreign[key] = alias_of(tensor)


def _captured(
    graph: torch.cuda.CUDAGraph, handle: Any, recorder: _Recorder, function: Callable[[], Any]
) -> Any:
    # Only this thread: other threads of the process may allocate meanwhile.
    graph.capture_begin(pool=handle, capture_error_mode="thread_local")
    try:
        with recorder:
            outputs = function()
    except RuntimeError as error:
        _abandon(graph)
        reason = message_of(error).strip().partition("\n")[0]
        raise CaptureError(f"the step does something that no graph can hold: {reason}") from error
    except BaseException:
        _abandon(graph)
        raise
    graph.capture_end()
    return outputs


def _abandon(graph: torch.cuda.CUDAGraph) -> None:
    """End a failed capture.

    CUDA repeats the first error, and torch's generator stays in the middle of the capture.
    """
    cuda_failures.mark_spent()
    with contextlib.suppress(RuntimeError):
        graph.capture_end()


def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """One side stream a device for all captures: each stream with matrix products costs a
    workspace.
    """
    index = torch.cuda.current_device() if device.index is None else device.index
    if index not in _streams:
        _streams[index] = torch.cuda.Stream(index)  # type: ignore[no-untyped-call]
    return _streams[index]
