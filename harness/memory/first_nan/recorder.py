"""Hooks on the modules of any model:

`with harness.first_nan(model) as recorder:`; and the report of a table.

Each module's output is scanned when it returns. The hooks run once in a capture or a compilation,
and the scans stay in what was captured; leaving the block takes the hooks away, not the scans of a
graph.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from harness.core.records import FirstNan
from harness.memory.first_nan.table import Hit, Kind, Slot, Table, can_watch

KEPT_STEPS = 4096
MAX_AFTER = 32
"""The most later hits in a report: enough to reach the next collective."""


@dataclass(slots=True)
class StepNotes:
    """The requests' rows in the latest steps: (request, first row, end)."""

    steps: dict[int, dict[str, list[tuple[str, int, int]]]] = field(default_factory=dict)

    def note(self, step: int, rows: dict[str, list[tuple[str, int, int]]]) -> None:
        """Keep the rows of a step by the kind of a slot's rows."""
        self.steps[step] = rows
        if len(self.steps) > KEPT_STEPS:
            del self.steps[next(iter(self.steps))]

    def request(self, hit: Hit) -> str:
        """The request of the row that was hit; empty if unknown."""
        spans = self.steps.get(hit.step, {}).get(hit.slot.rows, [])
        return next((name for name, start, end in spans if start <= hit.index[0] < end), "")


def describe(table: Table, notes: StepNotes | None = None, rank: int = 0) -> FirstNan | None:
    """The first hit of `table`; None if all watched values were finite. Reads the device."""
    hits = [hit for hit in table.hits() if hit.slot.kind != "beside"]
    if not hits:
        return None
    found = hits[0]
    slot = found.slot
    # Memory beside the call may have been bad in an earlier step, so its first hit proves nothing.
    bad = {slot for slot, step, _ in table.recent()[0] if step == found.step}
    bad |= {hit.slot for hit in hits if hit.step == found.step}
    scanned = table.scanned()
    call = [
        other
        for other in scanned
        if other.call == slot.call and other.op == slot.op and other != slot
    ]
    given = [other for other in call if other.kind != "output"]
    return FirstNan(
        writer=slot.op,
        tensor=slot.tensor,
        layer=slot.layer,
        step=found.step,
        phase=found.phase,
        rank=rank,
        request=notes.request(found) if notes else "",
        where=f"row {found.index[0]}, element {found.index[1]}",
        bits=found.bits,
        bad=slot.bad,
        is_input=slot.kind == "input",
        finite=tuple(other.tensor for other in given if other not in bad),
        not_finite=tuple(other.tensor for other in given if other in bad),
        before=_before(scanned, slot),
        after=tuple(_name(hit.slot) for hit in hits[1:] if hit.step == found.step)[:MAX_AFTER],
    )


def _name(slot: Slot) -> str:
    return f"{slot.op} {slot.tensor}"


def _before(scanned: list[Slot], slot: Slot) -> str:
    """The last output that was scanned before the slot that was hit: it was finite."""
    earlier = [
        s for s in scanned[: scanned.index(slot)] if s.kind == "output" and s.call != slot.call
    ]
    return _name(earlier[-1]) if earlier else ""


MAX_TENSORS = 2
"""Tensors of one output, or of one input, that are watched."""


class ModuleRecorder:
    """The result of `first_nan`: call `report()`, or print it."""

    def __init__(self, table: Table, inputs: bool = False) -> None:
        self.table = table
        self._inputs = inputs
        self._counts_steps = True
        self._calls: dict[str, int] = {}
        self._handles: list[Any] = []

    def attach(self, model: nn.Module, counts_steps: bool = True) -> None:
        """Hook every module of `model`.

        With `counts_steps` each forward of it is a step, counted on the device.
        """
        self._counts_steps = counts_steps
        for path, module in model.named_modules():
            name = path or type(model).__name__
            layer = layer_of(path)
            if self._inputs:
                self._handles.append(
                    module.register_forward_pre_hook(self._hook(name, layer, "input"))
                )
            self._handles.append(module.register_forward_hook(self._hook(name, layer, "output")))
        # In front of the root's own hook, whose scan belongs to the new step.
        self._handles.append(model.register_forward_pre_hook(self._begin, prepend=True))

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def report(self) -> FirstNan | None:
        """The first value that was not finite, and its writer; None while there is none.

        Waits for the device.
        """
        return describe(self.table)

    def rearm(self) -> None:
        """Forget what was found, and watch on."""
        self.table.rearm()

    def __str__(self) -> str:
        found = self.report()
        return found.statement if found else "all watched values were finite"

    def _begin(self, module: nn.Module, args: Any) -> None:
        if not torch.compiler.is_compiling():
            self._calls.clear()
        if self._counts_steps:
            self.table.begin_step()

    def _hook(self, name: str, layer: int | None, kind: Kind) -> Callable[..., None]:
        numbers = self._slots(name, layer, kind)

        def hook(module: nn.Module, *values: Any) -> None:
            # A module's hook before the forward gets its arguments, the one behind it the result
            # too.
            self._scan(values[-1], numbers, name, layer, kind)

        return hook

    def _slots(self, name: str, layer: int | None, kind: Kind, call: int = 0) -> list[int | None]:
        """Slots made beforehand: a compiled hook must change nothing of this process."""
        rows = "batch" if kind == "output" else ""
        names = [kind, *(f"{kind} {place}" for place in range(1, MAX_TENSORS))]
        return [
            self.table.slot(
                (name, kind, place, call), Slot(name, named, kind, layer, (name, call), rows)
            )
            for place, named in enumerate(names)
        ]

    def _scan(
        self, value: Any, numbers: list[int | None], name: str, layer: int | None, kind: Kind
    ) -> None:
        tensors = (
            [value]
            if isinstance(value, Tensor)
            else list(value)
            if isinstance(value, tuple | list)
            else []
        )
        tensors = [tensor for tensor in tensors if isinstance(tensor, Tensor) and can_watch(tensor)]
        if not tensors:
            return
        if not torch.compiler.is_compiling():
            # A module that is called several times in a step has slots for each of its calls.
            key = f"{kind} {name}"
            call = self._calls[key] = self._calls.get(key, -1) + 1
            numbers = self._slots(name, layer, kind, call) if call else numbers
        watched = [
            (n, tensor) for n, tensor in zip(numbers, tensors, strict=False) if n is not None
        ]
        if watched:
            self.table.scan_together(
                [number for number, _ in watched], [tensor for _, tensor in watched]
            )


def layer_of(path: str) -> int | None:
    """The first number in a module's path, which is that of its layer:

    `model.layers.3.mlp` -> 3.
    """
    return next((int(part) for part in path.split(".") if part.isdigit()), None)


@contextlib.contextmanager
def first_nan(
    model: nn.Module,
    live_rows: Tensor | None = None,
    *,
    inputs: bool = False,
    device: torch.device | str | None = None,
) -> Iterator[ModuleRecorder]:
    """Record within the block which module of `model` first returns what is not finite.

    `live_rows` [1] int32, on the model's device, is the number of live first rows of each tensor,
    before graph padding. Each scan reads it. None watches all rows. `inputs` scans the modules'
    inputs too, which finds an op between two modules. The default device is the first parameter's.
    """
    where = device or next(
        (parameter.device for parameter in model.parameters()), torch.device("cpu")
    )
    table = Table(torch.device(where))
    if live_rows is not None:
        table.live = live_rows
    recorder = ModuleRecorder(table, inputs)
    recorder.attach(model)
    try:
        yield recorder
    finally:
        recorder.detach()
