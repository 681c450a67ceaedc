"""What a kernel returned before: its memory is poisoned before the next call, and looked at again.

A kernel may keep its outputs and return them once more, and it may write them after it returned.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch_poison.patterns import Poison, bits_view
from torch_poison.storages import storage_address

from harness.cell.watch import Watch

SECONDS_FOR_THREADS = 1.0
"""How long a call waits for threads that the kernel started."""


class Returned:
    """The outputs of earlier calls that are still alive: the kernel has kept them."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._alive: dict[int, StorageWeakRef] = {}
        self._last: list[tuple[str, Tensor]] = []
        self._copies: list[tuple[Tensor, Tensor]] = []
        self._threads = set(threading.enumerate())

    def note(self, sited: Sequence[tuple[str, Tensor]]) -> None:
        """Note the outputs of a call, each with its site. They may be of any shape and dtype."""
        for site, tensor in sited:
            earlier = self._alive.get(storage_address(tensor))
            if earlier is not None and not earlier.expired():
                self._watch.note(
                    "returned memory that it had returned before", is_proof=False, site=site
                )
        self._last = list(sited)
        self._alive |= {
            storage_address(tensor): StorageWeakRef(tensor.untyped_storage()) for _, tensor in sited
        }
        self._alive = {
            address: storage for address, storage in self._alive.items() if not storage.expired()
        }

    def keep(self, tensor: Tensor, copy: Tensor) -> None:
        """Remember the content of an output, as `copy` [...] of its dtype on the host."""
        self._copies.append((tensor, copy))

    def forget(self, poison: Poison | None) -> None:
        """Fill what the kernel kept as memory that it has to write again, and let go of the last
        outputs.

        The last outputs stay alive until here, so those of this call had other addresses.
        """
        self._look_for_late_writes()
        self._copies = []
        for site, tensor in self._last:
            if poison is not None and poison.covers(site):
                with contextlib.suppress(RuntimeError):
                    poison.fill_(tensor.detach(), site)
        self._last = []

    def wait_for_threads(self) -> None:
        """Wait for threads that are new, and look whether one wrote an output."""
        new = [one for one in threading.enumerate() if one not in self._threads]
        if not new:
            return
        self._threads.update(new)
        end = time.monotonic() + SECONDS_FOR_THREADS
        for thread in new:
            thread.join(max(0.0, end - time.monotonic()))
        self._look_for_late_writes()

    def _look_for_late_writes(self) -> None:
        for tensor, copy in self._copies:
            now = tensor.detach().cpu().contiguous()
            if not torch.equal(bits_view(now), bits_view(copy)):
                self._watch.note("wrote an output after it had returned it")


def answers_for_itself(value: object) -> bool:
    """Whether the class of a value decides what torch computes with it."""
    kinds = type(value).__mro__
    own = kinds[: kinds.index(Tensor)] if Tensor in kinds else ()
    names = ("__torch_function__", "__torch_dispatch__", "__eq__")
    return any(name in vars(kind) for kind in own for name in names)
