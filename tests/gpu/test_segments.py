"""A graph of two segments with an eager part between them, on a GPU: only an argument that nobody
keeps is filled.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import torch

from mla_harness_vllm.serve.segment_fill import SegmentFill


def captured(function: Callable[[], None], pool: object) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        function()
    return graph


def run(*, keeps: bool) -> torch.Tensor:
    """y = x + 1 in the first segment, z = y * 2 in the second.

    Unless it `keeps` y, y is free at the break.
    """
    pool = torch.cuda.graph_pool_handle()
    x, z = torch.full((4096,), 3.0, device="cuda"), torch.zeros(4096, device="cuda")
    held: list[torch.Tensor] = []
    fill = SegmentFill(pool)

    def first() -> None:
        y = x + 1
        held.append(y)

    one = captured(first, pool)
    y = held[0]
    if not keeps:
        held.clear()
        weak = _weak(y)
        del y
        fill.note()
        y = weak
    else:
        fill.note()
    two = captured(lambda: z.copy_(y * 2), pool)
    fill.note()
    held.clear()
    fill.replay([one.replay, two.replay])
    torch.cuda.synchronize()
    return z.cpu()


def _weak(tensor: torch.Tensor) -> torch.Tensor:
    """A float32 tensor on the memory of `tensor` [n] that does not keep it."""
    shown = {
        "shape": tuple(tensor.shape),
        "typestr": "<f4",
        "data": (tensor.data_ptr(), False),
        "version": 3,
    }
    return torch.as_tensor(
        SimpleNamespace(__cuda_array_interface__=shown | {"strides": None}), device="cuda"
    )


def test_an_argument_that_a_tensor_owns_at_the_break_is_kept() -> None:
    assert torch.equal(run(keeps=True), torch.full((4096,), 8.0))


def test_an_argument_that_no_tensor_owns_at_the_break_is_filled() -> None:
    assert bool(run(keeps=False).isnan().all())
