"""A call on a stream of its own, behind the event of a producer on another stream that is held
until the call returned.

Work of the call on any other stream does not wait for the event, so it reads what the inputs held
before the producer wrote. Host memory that the call keeps for its copies can be changed while the
copies are still queued.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch_poison.cuda_sweep import CudaSweep
from torch_poison.storages import tensors_of
from triton.language.extra import cuda

MOST_NANOSECONDS = 30_000_000
"""A call that waits for its stream ends the hold after this time."""
DELAY = (0.0003, 0.002)
"""Seconds from the return of a call to the end of the hold: a seed draws the delay."""


@triton.jit
def _hold(released, most):
    start = cuda.globaltimer()
    flag = released.to(tl.pointer_type(tl.int32))
    # Volatile, because the host writes the flag: a load in front of the loop would never see it.
    while (tl.load(flag, volatile=True) == 0) & (cuda.globaltimer() - start < most):
        pass


@cache
def _streams(device: torch.device) -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
    """Two streams for all calls, as each keeps memory.

    At another priority they share no queue with a kernel's own.
    """
    return torch.cuda.Stream(device, priority=-1), torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]


class DelayedStreams:
    """A producer's stream and a caller's stream of one device. The delay is drawn from the seed."""

    def __init__(self, device: torch.device, seed: int) -> None:
        self._device = device
        self._random = random.Random(seed)
        # The host ends the hold, so no other stream is needed for it.
        self._released = torch.zeros(1, dtype=torch.int32).pin_memory()
        self._producer, self._caller = _streams(device)

    def __call__(
        self,
        function: Callable[[], Any],
        copies: Sequence[tuple[Tensor, Tensor]],
        after: Callable[[], Any] | None,
        in_order: bool,
    ) -> tuple[Tensor, ...]:
        """Call `function` behind the producer's copies (source, target), then `after`.

        Returns copies of its outputs.

        With `in_order` the host waits for the producer, and for the function, before it goes on.
        """
        torch.cuda.synchronize(self._device)
        # An output that is written too late holds this, not the values of an earlier call.
        CudaSweep.of(self._device)()
        self._released.fill_(int(in_order))
        torch.cuda.synchronize(self._device)
        with torch.cuda.stream(self._producer):
            _hold[(1,)](self._released.data_ptr(), MOST_NANOSECONDS, num_warps=1)
            for source, target in copies:
                target.copy_(source)
        self._caller.wait_stream(self._producer)
        try:
            with torch.cuda.stream(self._caller):
                self._wait(in_order)
                found = tensors_of(function())
                self._wait(in_order)
                # At once on the caller's stream, as a caller reads them. Work on another stream is
                # not waited for.
                outputs = tuple(output.clone() for output in found)
                if after is not None:
                    after()
            time.sleep(self._random.uniform(*DELAY))
        finally:
            # Also after an error: a kernel that spins would keep the device from everyone.
            self._released.fill_(1)
            torch.cuda.synchronize(self._device)
        return outputs

    def _wait(self, in_order: bool) -> None:
        if in_order:
            torch.cuda.synchronize(self._device)
