"""What a run computed on its way: every launch's live tensors as fingerprints, to compare runs by.

Two runs that differ only in what memory held that nobody wrote must compute the same in every live element. The first
launch whose live output differs has read that memory, also when nothing later shows it. Live are the rows of requests
and tokens that somebody asked for; rows of graph padding and results of dummy steps are nobody's.

Integers are looked at where they are consumed: an expert id that nobody wrote is read by the experts' kernel, not by
whoever hands it over.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from harness.core.ops import OPS
from harness.engine.runner import ModelRunner
from harness.judge.run_records import Run
from harness.kernels.call import BoundKernel
from harness.memory.graph.launch import WATCHER
from harness.memory.graph.storage import tensors_of

CONSUMED = {"apply_experts": ("x", "ids", "weights")}
"""Launches that are no op of the table, whose first arguments are rows of tokens and are looked at as well."""


@dataclass(frozen=True, slots=True)
class Event:
    """One live tensor at the border of one launch."""

    reader: str
    tensor: str
    step: int
    digest: str


@dataclass(slots=True)
class Trace:
    """The events of one run in order."""

    events: list[Event] = field(default_factory=list)
    step: int = -1
    num_live: int | None = None
    """Rows of tokens that somebody asked for in the step that runs; None outside of steps."""

    def note(self, reader: str, tensor: str, value: torch.Tensor) -> None:
        """Add the fingerprint of `value`, bit for bit."""
        raw = value.detach().cpu().contiguous().view(torch.uint8) if value.numel() else value
        digest = hashlib.blake2b(raw.numpy().tobytes() if value.numel() else b"", digest_size=8).hexdigest()
        self.events.append(Event(reader, tensor, self.step, digest))

    def watch(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """A launch ran; note what of it is live."""
        if self.num_live is None:
            return
        kernel = getattr(function, "__self__", None)
        if isinstance(kernel, BoundKernel):
            self._note_op(kernel, args, result)
            return
        name = getattr(function, "__name__", type(function).__name__)
        for what, value in zip(CONSUMED.get(name, ()), args, strict=False):
            self.note(name, what, value[: self.num_live])
        for place, value in enumerate(tensors_of(result)):
            # What the graph's own ops return is not a launch's; an OpOverload has no rows of its own.
            if value.dtype.is_floating_point and not isinstance(function, torch._ops.OpOverload):
                self.note(name, f"result {place}" if place else "result", value[: self.num_live])

    def note_outcome(self, run: Run, reader: str) -> None:
        """Add what the run hands to the oracles, the last place where a difference can show, as read by `reader`."""
        for observed in run.observed:
            self.note(reader, observed.name, observed.tensor[observed.live])

    def _note_op(self, kernel: BoundKernel, args: tuple[Any, ...], result: Any) -> None:
        assert self.num_live is not None
        op = OPS.get(kernel.spec.op)
        values = result if isinstance(result, tuple) else (result,)
        for output, value in zip(op.outputs, values, strict=False):
            if not isinstance(value, torch.Tensor) or not (value.dtype.is_floating_point):
                continue
            self.note(kernel.spec.name, output.name, self._live(op.name, output.shape.split(), value, args))

    def _live(self, op: str, letters: list[str], value: torch.Tensor, args: tuple[Any, ...]) -> torch.Tensor:
        """The elements of an output that are promised: rows of live tokens, and of those with context."""
        axis = next((place for place, letter in enumerate(letters) if letter in ("B", "T")), None)
        if axis is None or (letters[0] == "1" and value.ndim == 1):
            return value
        if op == "context_attention":
            rows = with_context(args[3], args[4], value.shape[axis]).to(value.device)
            return value.transpose(0, axis)[rows]
        return value.transpose(0, axis)[: self.num_live]


def with_context(query_start_loc: torch.Tensor, chunk_start_loc: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """Which of T tokens [T] bool have keys in a context chunk; the others' rows nobody promises."""
    lengths = query_start_loc.diff().long().cpu()
    has_keys = (chunk_start_loc.diff() > 0).cpu()
    rows = torch.repeat_interleave(has_keys, lengths)
    return torch.cat((rows, torch.zeros(num_tokens - rows.shape[0], dtype=torch.bool)))


@contextlib.contextmanager
def traced() -> Iterator[Trace]:
    """Watch every launch of the engine's steps within the block. Warm-ups, captures and dummy steps are not live."""
    trace = Trace()
    originals = {name: ModelRunner.__dict__[name] for name in ("_run_eagerly", "_run_graph")}

    def watching(original: Callable[..., Any]) -> Callable[..., Any]:
        def run(runner: ModelRunner, batch: Any, ordered: list[Any], *rest: Any) -> Any:
            trace.step += 1
            trace.num_live = sum(item.num_new_tokens for item in ordered)
            try:
                return original(runner, batch, ordered, *rest)
            finally:
                trace.num_live = None

        return run

    token = WATCHER.set(trace.watch)
    for name, original in originals.items():
        setattr(ModelRunner, name, watching(original))
    try:
        yield trace
    finally:
        for name, original in originals.items():
            setattr(ModelRunner, name, original)
        WATCHER.reset(token)


def first_difference(one: Trace, other: Trace) -> Event | None:
    """The first event in which two runs differ, or None when they computed the same."""
    for ours, theirs in zip(one.events, other.events, strict=False):
        if ours != theirs:
            return ours
    longer, shorter = sorted((one.events, other.events), key=len, reverse=True)
    return longer[len(shorter)] if len(longer) > len(shorter) else None
