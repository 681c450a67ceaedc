"""The trace of a run: fingerprints of the live tensors of every launch, for the comparison of two
runs.

Two runs that differ only in the content of uninitialised memory must compute the same live values.
The first launch with another live output has read such memory, even if the answers do not show it.
The rows of requests are live. Rows of graph padding and all rows of dummy steps, warm-ups and
captures are not.

Integers count where they are consumed: an unwritten expert id counts for the experts' kernel, which
reads it, and not for the function that returns it.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch_poison.storages import tensors_of

from harness.core.contract import Op
from harness.core.ops import OPS, part_of
from harness.engine.batch import Batch
from harness.engine.probe import Probe
from harness.engine.schedule.sequence import ScheduledSequence
from harness.evidence.observed import Observed
from harness.evidence.records import Run
from harness.kernels.call import BoundKernel, kernel_of, name_of

CONSUMED = {"apply_experts": ("x", "ids", "weights")}
"""Launches outside of the op table. Their first arguments are rows of tokens and are noted too."""


@dataclass(frozen=True, slots=True)
class Event:
    """One live input or output of a launch."""

    reader: str
    tensor: str
    step: int
    digest: str


@dataclass(slots=True)
class Trace(Probe):
    """The events of one run in order."""

    events: list[Event] = field(default_factory=list)
    step: int = -1
    num_live: int | None = None
    """Live rows of tokens in the current step; None outside of steps."""

    @contextlib.contextmanager
    def on_step(self, ordered: list[ScheduledSequence], batch: Batch) -> Iterator[None]:
        self.step += 1
        self.num_live = sum(item.num_new_tokens for item in ordered)
        try:
            yield
        finally:
            self.num_live = None

    def before_launch(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        return function, args

    def after_launch(self, noted: Any, result: Any) -> None:
        function, args = noted
        self.on_repeat(function, args, result)

    def on_repeat(self, function: Callable[..., Any], args: tuple[Any, ...], result: Any) -> None:
        """Note the live tensors of a launch, made or repeated."""
        if self.num_live is None:
            return
        kernel = kernel_of(function)
        if kernel is not None:
            self._note_op(kernel, args, result)
            return
        name = name_of(function)
        for what, value in zip(CONSUMED.get(name, ()), args, strict=False):
            self.note(name, what, value[: self.num_live])
        for place, value in enumerate(tensors_of(result)):
            # Results of ATen ops in a graph belong to no launch and have no rows of tokens.
            if value.dtype.is_floating_point and not isinstance(function, torch._ops.OpOverload):
                self.note(name, f"result {place}" if place else "result", value[: self.num_live])

    def note(self, reader: str, tensor: str, value: torch.Tensor) -> None:
        """Add the fingerprint of value [...] of any dtype, bfloat16 or uint8, bit for bit."""
        raw = value.detach().cpu().contiguous().view(torch.uint8) if value.numel() else value
        digest = hashlib.blake2b(
            raw.numpy().tobytes() if value.numel() else b"", digest_size=8
        ).hexdigest()
        self.events.append(Event(reader, tensor, self.step, digest))

    def note_outcome(self, run: Run, reader: str) -> None:
        """Add the tensors for the oracles, as read by `reader`: the last place that can show a
        difference.
        """
        for observed in run.all(Observed):
            self.note(reader, observed.name, observed.tensor[observed.live])

    def _note_op(self, kernel: BoundKernel, args: tuple[Any, ...], result: Any) -> None:
        op = OPS.get(kernel.spec.op)
        values = result if isinstance(result, tuple) else (result,)
        for output, value in zip(op.outputs, values, strict=False):
            if isinstance(value, torch.Tensor) and value.dtype.is_floating_point:
                self.note(
                    kernel.spec.name,
                    output.name,
                    self._live(op, output.shape.split(), value, args),
                )

    def _live(
        self, op: Op, letters: list[str], value: torch.Tensor, args: tuple[Any, ...]
    ) -> torch.Tensor:
        """The promised elements of an output: rows of live tokens, or of those that the op
        writes.
        """
        axis = next((place for place, letter in enumerate(letters) if letter in ("B", "T")), None)
        # One number for the whole call, such as a scale, belongs to no row.
        if axis is None or (letters[0] == "1" and value.ndim == 1):
            return value
        if op.written_tokens:
            rows = part_of(op.name, op.written_tokens)(args, value.shape[axis]).to(value.device)
            return value.transpose(0, axis)[rows]
        return value.transpose(0, axis)[: self.num_live]


def first_difference(one: Trace, other: Trace) -> Event | None:
    """The first event in which two runs differ, or None."""
    for ours, theirs in zip(one.events, other.events, strict=False):
        if ours != theirs:
            return ours
    longer, shorter = sorted((one.events, other.events), key=len, reverse=True)
    return longer[len(shorter)] if len(longer) > len(shorter) else None
