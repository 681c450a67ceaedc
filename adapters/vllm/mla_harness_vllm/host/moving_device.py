"""What vLLM's connectors call on a CPU: `mla_harness_adapters.moving_device`.

vLLM calls it instead of torch.cuda's streams and events, the driver's batched copy, and the CUDA
extension's `swap_blocks_batch`. Nothing else of a connector is replaced.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from vllm import _custom_ops
from vllm.platforms import current_platform
from vllm.v1.kv_offload.cpu import gpu_worker, spec
from vllm.v1.simple_kv_offload import copy_backend, cuda_mem_ops, worker

from mla_harness_adapters.host_parts import patched
from mla_harness_adapters.moving_device import Device, DeviceEvent
from mla_harness_vllm.releases import BARRIER_OF_WORKERS, COPY_FROM_HOST, DRIVER_COPY, PINNED


class InlineThread:
    """A thread that copies what a queue brings: here its loop runs as soon as something is put into
    the queue.
    """

    def __init__(self, target: Any, args: tuple[Any, ...], **options: Any) -> None:
        self._target = target
        self._args = args

    def start(self) -> None:
        target = self._target
        source, *rest = self._args

        def put(item: Any) -> None:
            if item is not None:
                items: queue.SimpleQueue[Any] = queue.SimpleQueue()
                items.put(item)
                # The thread's loop ends at None, so `target` returns after this one item.
                items.put(None)
                target(items, *rest)

        source.put = put

    def join(self, timeout: float | None = None) -> None:
        """Nothing runs beside the caller."""


class OwnQueue:
    """A queue whose `put` the thread replaces."""


def _driver_copy(device: Device) -> tuple[str, Any]:
    """The variable that holds the driver's copy, and the one in its place."""
    if DRIVER_COPY.of(cuda_mem_ops):
        return DRIVER_COPY.name, device.memcpy_batch
    return "_batch_memcpy", (device.memcpy_batch, 1)


@contextlib.contextmanager
def in_place(device: Device) -> Iterator[None]:
    """Let vLLM use `device` for the length of the block."""
    stream = mock.Mock(side_effect=device.stream)
    stream.priority_range = lambda: (0, -1)
    event = lambda *args, **options: DeviceEvent(device)  # noqa: E731
    threads = mock.Mock(wraps=threading, Thread=InlineThread)
    queues = mock.Mock(wraps=queue, SimpleQueue=OwnQueue)

    def swap_blocks_batch(sources: Tensor, targets: Tensor, sizes: Tensor, **_: Any) -> None:
        """The extension's copy of blocks: addresses [n] and sizes [n], int64."""
        device.copy(device.current, *(values.tolist() for values in (sources, targets, sizes)))

    shared = {"stream": device.within, "current_stream": device.current_stream}
    patches: list[Any] = [
        patched(torch.cuda, {"Stream": stream, "Event": event} | shared),
        mock.patch.object(torch, "Event", event),
        mock.patch.object(torch.accelerator, "current_device_index", lambda: 0),
        mock.patch.multiple(copy_backend, threading=threads, queue=queues),
        mock.patch.object(cuda_mem_ops, *_driver_copy(device)),
        mock.patch.object(_custom_ops, "swap_blocks_batch", swap_blocks_batch),
    ]
    for module, pinned in itertools.product((worker, gpu_worker), PINNED):
        if pinned.of(module):
            unpinned = False if pinned.name.isupper() else lambda: False
            patches.append(mock.patch.object(module, pinned.name, unpinned))
    if COPY_FROM_HOST.of(gpu_worker):
        # Triton's interpreter would copy at once.
        patches.append(mock.patch.object(gpu_worker, "swap_blocks_batch", swap_blocks_batch))
    if BARRIER_OF_WORKERS.of(spec):
        patches.append(mock.patch.object(spec, "_all_workers_barrier", lambda: None))
    of_platform = shared | {
        "Stream": device.stream,
        "set_device": lambda *args: None,
        "is_cuda_alike": lambda: True,
    }
    patches.append(patched(current_platform, of_platform, create=True))
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield
