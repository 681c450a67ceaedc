"""The first-NaN recorder of a process of an engine, which runs a model step by step.

The engine says when a step begins, how many rows of it are live, and which requests they belong to.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch
from torch import Tensor, nn

from harness.core.records import FirstNan
from harness.memory.first_nan.recorder import ModuleRecorder, StepNotes, describe, layer_of
from harness.memory.first_nan.table import Slot, Table, can_watch

Spans = list[tuple[str, int, int]]
"""The rows of the requests of a step: (request, first row, end)."""


class StepRecorder:
    """Watches the modules of a model on one device.

    Make it after the weights are loaded and before anything is compiled or captured: its table is
    allocated on the device, and captured graphs keep writing to it. Rows of warm-ups, captures and
    dummy runs are not live.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        """Hook every module of `model`."""
        self.table = Table(device)
        self.table.live.fill_(0)
        self.step = -1
        """The number of the current step, or of the latest."""
        self._notes = StepNotes()
        self._modules = ModuleRecorder(self.table)
        self._modules.attach(model, counts_steps=False)

    def begin(self, phase: str, live_rows: int) -> None:
        """Queue the clock and the live rows of the next step on the current stream.

        `phase` is one of `forward`, `prefill`, `decode` and `mixed`. The first `live_rows` rows of
        each watched tensor are live.
        """
        self.step += 1
        with torch.inference_mode():
            self.table.set_clock(self.step, phase)
            self.table.live.fill_(live_rows)

    def note(self, spans: Spans) -> None:
        """Keep the rows of the requests of the current step, for the report."""
        self._notes.note(self.step, {"batch": spans})

    def end(self) -> None:
        """Let no row be live until the next step begins."""
        with torch.inference_mode():
            self.table.live.fill_(0)

    def watched(
        self,
        path: str,
        op: str,
        tensor: str = "output",
        *,
        call: Hashable,
        rows: str = "batch",
        limit: int = -1,
        bad: str = "not finite",
    ) -> Callable[[Tensor], None]:
        """A function that scans a result of `op`, which is no module: an attention, a router.

        `path` is the module that calls it, and names the layer. `tensor` is the name of the result.
        With a `limit`, results are ids [T, K] int32 or int64, and an id outside 0 .. limit - 1 is
        bad. Otherwise they are floats of any shape and type, and what is not finite is bad. `rows`
        is empty if the rows of the result are not those of the batch.
        """
        slot = Slot(f"{path}.{op}", tensor, "output", layer_of(path), call, rows, limit, bad)
        number = self.table.slot(call, slot)

        def scan(result: Tensor) -> None:
            is_of_type = (
                result.dtype in (torch.int32, torch.int64) and result.numel() > 0
                if limit >= 0
                else can_watch(result)
            )
            if number is not None and is_of_type:
                self.table.scan(number, result, limit=limit)

        return scan

    def report(self, rank: int) -> FirstNan | None:
        """The writer of the first live value that is not finite; None if there was none.

        Waits for the device.
        """
        with torch.inference_mode():
            return describe(self.table, self._notes, rank)
