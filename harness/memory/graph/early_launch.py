"""A kernel behind a slow predecessor: which of its launches begin before the kernel in front has
ended.

With programmatic dependent launch (PDL) a kernel may begin as soon as each block of its predecessor
allows it. It must wait (`griddepcontrol.wait`) before it reads what the predecessor writes, and
before it writes what that one reads (flashinfer-ai/flashinfer#4199). The predecessor here allows it
at once, holds for HOLD_NANOSECONDS, and only then copies, as in NVIDIA/cccl#5249. How a kernel
launches is read from the edges of a captured graph.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch_poison.storages import tensors_of
from triton.language.extra import cuda

from harness.core import cuda_failures
from harness.core.errors import CaptureError, SystemUnderTestError

HOLD_NANOSECONDS = 200_000
PROGRAMMATIC = 1
"""CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC."""
PROGRAMS = 16
MOST_COPIES = 64


@triton.jit
def _hold_then_copy(table, num_copies, hold, BLOCK: tl.constexpr):
    # First of all: the next kernel may start now, and reads too early if it does not wait.
    cuda.gdc_launch_dependents()
    start = cuda.globaltimer()
    while cuda.globaltimer() - start < hold:
        pass
    for row in range(num_copies):
        source = tl.load(table + 3 * row).to(tl.pointer_type(tl.uint8))
        target = tl.load(table + 3 * row + 1).to(tl.pointer_type(tl.uint8))
        size = tl.load(table + 3 * row + 2)
        first = tl.program_id(0).to(tl.int64) * BLOCK
        step = tl.num_programs(0).to(tl.int64) * BLOCK
        for begin in range(first, size, step):
            offsets = begin + tl.arange(0, BLOCK)
            tl.store(
                target + offsets,
                tl.load(source + offsets, mask=offsets < size),
                mask=offsets < size,
            )


class EarlyLaunch:
    """`function` captured behind the slow predecessor.

    `num_early` of its launches follow a predecessor early.

    `is_early` is whether the first one does: only that one follows the slow predecessor.
    """

    def __init__(self, function: Callable[[], Any], device: torch.device) -> None:
        """Capture.

        Raises CaptureError if the function cannot be captured. It must have run before.
        """
        self._table = torch.zeros((MOST_COPIES, 3), dtype=torch.int64, device=device)
        # Once outside the capture, which can compile nothing.
        self._hold()
        torch.cuda.synchronize(device)
        # torch would drop the graph after its instantiation, and with it the edges that are read
        # below.
        self._graph = torch.cuda.CUDAGraph(keep_graph=True)
        try:
            with torch.no_grad(), torch.cuda.graph(self._graph):
                self._hold()
                self.outputs = tuple(tensors_of(function()))
        except (RuntimeError, SystemUnderTestError) as error:
            cuda_failures.mark_spent()
            # The end of a failed capture raises an error of its own, which hides the kernel's.
            reason = str(error.__context__ or error).strip().partition("\n")[0]
            raise CaptureError(
                f"no graph can hold the call, so its launches cannot be read: {reason}"
            ) from error
        edges = edges_of(self._graph.raw_cuda_graph())
        self.num_early = sum(kind == PROGRAMMATIC for _, _, kind in edges)
        targets = {target for _, target, _ in edges}
        # The slow predecessor is the only kernel that nothing comes before.
        roots = {source for source, _, _ in edges} - targets
        self.is_early = any(source in roots and kind == PROGRAMMATIC for source, _, kind in edges)
        self._graph.instantiate()

    def _hold(self) -> None:
        _hold_then_copy[(PROGRAMS,)](
            self._table, MOST_COPIES, HOLD_NANOSECONDS, BLOCK=1024, num_warps=4
        )

    def __call__(self, copies: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, ...]:
        """Replay.

        The predecessor copies the bytes of each (source, target), contiguous tensors of equal size.
        """
        rows = [(source.data_ptr(), target.data_ptr(), source.nbytes) for source, target in copies]
        # The captured kernel goes through all rows of the table. These copy nothing.
        rows += [(0, 0, 0)] * (MOST_COPIES - len(rows))
        self._table.copy_(torch.tensor(rows, dtype=torch.int64))
        torch.cuda.synchronize(self._table.device)
        self._graph.replay()
        torch.cuda.synchronize(self._table.device)
        return self.outputs


class _EdgeData(ctypes.Structure):
    """CUgraphEdgeData."""

    _fields_ = (
        ("from_port", ctypes.c_ubyte),
        ("to_port", ctypes.c_ubyte),
        ("type", ctypes.c_ubyte),
        ("reserved", ctypes.c_ubyte * 5),
    )


def edges_of(graph: int, driver: Any = None) -> list[tuple[int, int, int]]:
    """The edges of a captured graph: source, target, kind of dependency.

    `graph` is the address of a CUgraph.
    """
    driver = driver or ctypes.CDLL("libcuda.so.1")
    count = ctypes.c_size_t()
    _check(driver.cuGraphGetEdges_v2(ctypes.c_void_p(graph), None, None, None, ctypes.byref(count)))
    sources, targets = ((ctypes.c_void_p * count.value)() for _ in range(2))
    data = (_EdgeData * count.value)()
    if count.value:
        _check(
            driver.cuGraphGetEdges_v2(
                ctypes.c_void_p(graph), sources, targets, data, ctypes.byref(count)
            )
        )
    return [(a or 0, b or 0, one.type) for a, b, one in zip(sources, targets, data, strict=True)]


def _check(code: int) -> None:
    if code:
        raise CaptureError(f"the CUDA driver does not show the edges of the graph: error {code}")
