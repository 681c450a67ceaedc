"""Index checks that fail as hardware does, unlike Python's negative indices."""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor

from torch_poison.allocations import only_writes
from torch_poison.errors import IllegalAddress

# More than the names that an engine checks. A fixed size lets memory be pinned once, before
# captures.
MAX_CHECKS = 64


def check_indices(indices: Tensor, size: int, what: str) -> Tensor:
    """Return `indices` (any int dtype) as int64 after checking that each lies in [0, size).

    Raises IllegalAddress for the first bad index. A GPU would fault or read foreign memory
    (vllm-project/vllm#33664, vllm-project/vllm#43869), where `tensor[-1]` in Python reads the last
    element.

    On CUDA the check does not wait for the device, so a graph can capture it. It clips a bad index,
    because a fault would end the process, and `raise_bad_indices` raises the error.
    """
    wide = indices.to(torch.int64)
    if wide.is_cuda:
        _verdicts.note((wide < 0) | (wide >= size), size, what)
        # An empty dimension has no valid index; 0 keeps the clamp legal, and the verdict is kept
        # above.
        return wide.clamp(0, max(size - 1, 0))
    _raise_first_bad(wide, size, what)
    return wide


# A part of most kernels and launches: it costs a mode more than all else in it.
@only_writes
def _raise_first_bad(wide: Tensor, size: int, what: str) -> None:
    if not wide.numel():
        return
    # Least and largest take a third of the time of a mask, and nearly all indices are good.
    least, largest = torch.aminmax(wide)
    if int(least) >= 0 and int(largest) < size:
        return
    first = tuple(int(i) for i in ((wide < 0) | (wide >= size)).nonzero()[0])
    message = f"{what}: index {int(wide[first])} at {list(first)} is outside [0, {size})"
    raise IllegalAddress(message, tensor=what)


def raise_bad_indices() -> None:
    """Raise IllegalAddress for the first check on CUDA that failed since the last call.

    Call it when the device has finished, for example after a read of logits.
    """
    if error := bad_index():
        raise error


def bad_index() -> IllegalAddress | None:
    """The error of the first check on CUDA that failed since the last call, also if the device is
    lost.
    """
    return _verdicts.take_first()


class Verdicts:
    """Verdicts of checks on CUDA, in pinned memory: the device writes, and the host reads without a
    sync.
    """

    def __init__(self, flags: Tensor | None = None, failed: Tensor | None = None) -> None:
        """`flags` [MAX_CHECKS] bool is memory of the host, `failed` [MAX_CHECKS] bool of the
        device.

        The first check makes what is not given.
        """
        self._flags = flags
        self._failed = failed
        self._slot_of: dict[str, int] = {}
        self._size_of: dict[str, int] = {}

    def note(self, bad: Tensor, size: int, what: str) -> None:
        """Keep whether any of `bad` [...] bool is set, on the device.

        The host reads it at the end of the step.
        """
        if self._flags is None or self._failed is None:
            # The first check runs before any capture: pinning memory cannot be captured.
            self._flags = torch.zeros(MAX_CHECKS, dtype=torch.bool, pin_memory=True)
            self._failed = torch.zeros(MAX_CHECKS, dtype=torch.bool, device=bad.device)
        # One slot for each name, because sizes are too many. Checks past the last slot share it and
        # its first name.
        slot = self._slot_of.setdefault(what, min(len(self._slot_of), MAX_CHECKS - 1))
        self._size_of[what] = size
        if bad.numel():
            # The same check runs in every layer, so verdicts are combined.
            verdict = self._failed[slot : slot + 1]
            verdict.logical_or_(bad.any())
            self._flags[slot : slot + 1].copy_(verdict, non_blocking=True)

    def take_first(self) -> IllegalAddress | None:
        if self._flags is None or self._failed is None:
            return None
        failed = self._flags.nonzero().flatten().tolist()
        if not failed:
            return None
        self._flags.zero_()
        with contextlib.suppress(
            RuntimeError
        ):  # a device on which a kernel has faulted takes no more orders
            self._failed.zero_()
        what = next(what for what, slot in self._slot_of.items() if slot == failed[0])
        return IllegalAddress(f"{what}: index outside [0, {self._size_of[what]})", tensor=what)


_verdicts = Verdicts()
