"""vLLM's second runner captures a decode that makes its plan in the first call: is the planning in
the graph?

`CudaGraphManager.capture` is vLLM's. The graph is a recording of launches. The planning and
attention kernels are the harness's, and the metadata is planned lazily, as FlashMLA's is
(vllm-project/vllm#42444).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch_poison.patterns import Poison
from vllm.config import CUDAGraphMode
from vllm.v1.worker.gpu import cudagraph_utils

from harness.api import ReplayedStep, Run, kernel_function
from mla_harness_adapters.host_parts import made_without_init
from mla_harness_vllm.params import VllmHostParams

_PLAN = kernel_function("mla_decode_plan", "tiled")
_DECODE = kernel_function("mla_decode", "tiled")
PAGE_SIZE = 64
"""The tokens of a page, in which the plan is made."""
WIDTH = 576
RANK = 512
NUM_HEADS = 4
NUM_REQUESTS = 4
NUM_PAGES = 4
WARMUP_LENGTH = 1
LENGTHS = ((3, 64, 65, 130), (4, 65, 66, 131), (5, 66, 200, 132))
"""Lengths of the requests in each replay."""


def run(poison: Poison, params: VllmHostParams) -> Run:
    """Let vLLM capture the decode, and replay it for each set of lengths beside the same decode run
    eagerly.
    """
    found = Run(poison.pattern)
    # The manager captures under inference mode; its tensors may only be written in it.
    with torch.inference_mode():
        decode = _Decode(poison)
        graph = _captured(decode)
        for step, lengths in enumerate(LENGTHS):
            decode.seq_lens.copy_(torch.tensor(lengths, dtype=torch.int32))
            for repeat in graph.launches:
                repeat()
            replayed = decode.out.clone()
            eager, plan = decode.eager()
            live = torch.ones(NUM_REQUESTS, dtype=torch.bool)
            # A replayed plan that differs from the eager one is named as the cause: the graph holds
            # no planning, so every replay uses the plan of the capture.
            stale = None if torch.equal(decode.plans[-1].work, plan.work) else "sched_meta"
            found.evidence.append(
                ReplayedStep(step, "decode output", replayed, eager, live, stale_site=stale)
            )
    return found


class _Recording:
    """Stands in for `torch.cuda.CUDAGraph`: the kernels launched during the capture, which do not
    run.
    """

    def __init__(self) -> None:
        self.launches: list[Callable[[], object]] = []


_capturing: list[_Recording] = []
"""The capture in progress, if there is one."""


@contextlib.contextmanager
def _captures(graph: _Recording, *_: Any, **__: Any) -> Iterator[None]:
    """Stands in for `torch.cuda.graph`: launches within the block are recorded."""
    _capturing.append(graph)
    try:
        yield
    finally:
        _capturing.remove(graph)


def _launch(kernel: Callable[[], object]) -> None:
    """Run a kernel, or record it if a capture is in progress."""
    if _capturing:
        # As on a GPU: a launch under capture is recorded, and computes nothing until a replay.
        _capturing[-1].launches.append(kernel)
    else:
        kernel()


class _Decode:
    """One decode batch in persistent buffers."""

    def __init__(self, poison: Poison) -> None:
        random = torch.Generator().manual_seed(poison.seed)
        self._q = torch.randn(NUM_REQUESTS, 1, NUM_HEADS, WIDTH, generator=random)
        self._cache = torch.randn(NUM_REQUESTS * NUM_PAGES, PAGE_SIZE, WIDTH, generator=random)
        # Graphs keep addresses. So queries, cache, table, lengths and output stay where they are,
        # and only the content of `seq_lens` changes between replays.
        self._table = torch.arange(NUM_REQUESTS * NUM_PAGES, dtype=torch.int32).view(
            NUM_REQUESTS, NUM_PAGES
        )
        self.seq_lens = torch.full((NUM_REQUESTS,), WARMUP_LENGTH, dtype=torch.int32)
        self.out = torch.zeros(NUM_REQUESTS, NUM_HEADS, RANK)
        self.plans: list[Any] = []

    def create(self, desc: Any, **_: Any) -> _Forward:
        """Stands in for vLLM's `create_forward_fn`: a forward with metadata that has no plan
        yet.
        """
        return _Forward(self)

    def eager(self) -> tuple[Tensor, Any]:
        """Output and plan of the same step without a graph."""
        plan = _PLAN(self.seq_lens, num_heads=NUM_HEADS)
        return self.attend(plan), plan

    def plan_into(self, plan: Any) -> None:
        fresh = _PLAN(self.seq_lens, num_heads=NUM_HEADS)
        plan.work.copy_(fresh.work)
        plan.num_splits.copy_(fresh.num_splits)

    def attend(self, plan: Any) -> Tensor:
        scale = WIDTH**-0.5
        out, _ = _DECODE(
            self._q, self._cache, self._table, self.seq_lens, scale=scale, metadata=plan
        )
        rows: Tensor = out[:, 0]
        return rows


class _Forward:
    """A forward that makes a plan when its metadata has none.

    Up to 0.25.1 vLLM unpacks this object into a forward and its metadata. Since 0.26.0 it calls the
    object.
    """

    def __init__(self, decode: _Decode) -> None:
        self._decode = decode
        self.plan: Any = None

    def __call__(self, mode: Any) -> None:
        decode = self._decode
        plan = self.plan
        if plan is None:
            shape = _PLAN(decode.seq_lens, num_heads=NUM_HEADS)
            self.plan = plan = replace(
                shape,
                work=torch.zeros_like(shape.work),
                num_splits=torch.zeros_like(shape.num_splits),
            )
            decode.plans.append(plan)
            _launch(lambda: decode.plan_into(plan))
        _launch(lambda: decode.out.copy_(decode.attend(plan)))

    def __iter__(self) -> Iterator[Any]:
        return iter((self, "metadata"))


def _captured(decode: _Decode) -> _Recording:
    """The recording that vLLM's manager makes of the decode."""
    desc = cudagraph_utils.BatchExecutionDescriptor(
        cg_mode=CUDAGraphMode.FULL, num_tokens=NUM_REQUESTS, num_reqs=NUM_REQUESTS
    )
    manager = made_without_init(
        cudagraph_utils.CudaGraphManager,
        device=torch.device("cpu"),
        pool="a pool",
        graphs={},
        _capture_descs={CUDAGraphMode.FULL: [desc]},
        # Read since 0.26.0, 0.29.0, 0.30.0 and 0.32.0: options that are off.
        use_breakable_cg=False,
        _max_full_descs_to_capture=None,
        _capture_mem_samples=None,
        ubatch_runner=None,
        vllm_config=SimpleNamespace(use_cumem_cudagraph_pool=False),
    )
    no_stream = contextlib.nullcontext(SimpleNamespace(stream=None))
    with (
        mock.patch.object(cudagraph_utils, "graph_capture", lambda **_: no_stream),
        mock.patch.object(cudagraph_utils, "get_offloader", mock.MagicMock()),
        mock.patch.object(cudagraph_utils, "is_global_first_rank", lambda: False),
        mock.patch.object(
            cudagraph_utils, "current_stream", lambda: None, create=True
        ),  # called since 0.29.0
        mock.patch.object(torch.cuda, "CUDAGraph", _Recording),
        mock.patch.object(torch.cuda, "graph", _captures),
    ):
        manager.capture(decode.create)
    graph: _Recording = manager.graphs[desc]
    return graph
