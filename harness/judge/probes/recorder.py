"""The first-NaN recorder on the engine: it scans what modules and launches compute, and names the
request of a row.

The op's contract says what it scans of an op, and the tokens of the rows.

A scan is launched behind each op, in eager steps and in captures. So the graphs hold the scans, and
replays record. Only live rows count, the rows of requests. Graph padding, warm-ups, captures and
dummy steps have none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch_poison.storages import tensors_of

from harness.core.contract import Op
from harness.core.ops import OPS, part_of
from harness.core.records import FirstNan
from harness.engine.batch import Batch, Padding
from harness.engine.memory import PagedMemory
from harness.engine.paged_model import PagedModel
from harness.engine.probe import Probe
from harness.engine.schedule.block_pool import BlockPool
from harness.engine.schedule.sequence import ScheduledSequence
from harness.kernels.call import BoundKernel, kernel_of, name_of
from harness.memory.first_nan.recorder import StepNotes, describe, layer_of
from harness.memory.first_nan.table import Kind, Slot, Table
from harness.memory.graph.launch import launch_unseen

Planner = tuple[Callable[..., Any], dict[str, Any]]
"""A function that makes a plan, and its arguments by keyword."""
PLANNING = frozenset(op.planned_keyword[1] for op in OPS if op.planned_keyword is not None)
"""The ops whose result is a plan for another op."""
NOT_FINITE, NO_EXPERT, STALE = "not finite", "no expert's id", "a plan for other lengths"
HANDED_OUT = "what hands out the logits"


@dataclass(slots=True)
class EngineRecorder(Probe):
    """Scans one engine.

    With `inputs` it scans the inputs of ops too; a recorder in a server scans outputs only.
    """

    table: Table
    inputs: bool = True
    notes: StepNotes = field(default_factory=StepNotes)
    _step: int = -1
    _num_pending: int = 0
    """Live rows of the next replay: a step's tokens, until its replay takes them."""
    _layer: int | None = None
    _num_tokens: int = 0
    _num_experts: int = 0
    _ids: Tensor | None = None
    _planners: dict[str, Planner] = field(default_factory=dict)
    """Op -> its last launch, of the ops whose result is a plan."""
    _calls: dict[str, int] = field(default_factory=dict)
    _handles: list[Any] = field(default_factory=list)
    _hooked: set[int] = field(default_factory=set)

    def report(self) -> FirstNan | None:
        """The op that wrote the first live value that is not finite, and its inputs that are not
        scanned.
        """
        found = describe(self.table, self.notes)
        if found is None:
            return None
        op = found.writer.partition("/")[0]
        return found.but(not_watched=OPS.get(op).unwatched if op in OPS else ())

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()

    def on_start(
        self, model: PagedModel, memory: PagedMemory, pool: BlockPool, padding: Padding
    ) -> None:
        self.hook(model.model)

    def hook(self, model: nn.Module) -> None:
        """Hook the modules, once for each model: engines may share one."""
        if id(model) in self._hooked:
            return
        self._hooked.add(id(model))
        for path, module in model.named_modules():
            if path:
                self._handles.append(module.register_forward_hook(self._module_hook(path)))

    def on_forward(self, num_tokens: int) -> AbstractContextManager[None]:
        self._calls.clear()
        self._layer, self._num_tokens = None, num_tokens
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def on_step(self, ordered: list[ScheduledSequence], batch: Batch) -> Iterator[None]:
        """The rows of an eager step are live all along, the rows of a replayed step only in its
        replay.
        """
        self._step += 1
        self._note_rows(ordered)
        self._num_pending = sum(item.num_new_tokens for item in ordered)
        with self._live(self._num_pending):
            yield
        self._num_pending = 0

    @contextlib.contextmanager
    def on_replay(self, inputs: Batch) -> Iterator[None]:
        """Make the pending rows live.

        The replay of a dummy step has none, and what follows in the step has none.
        """
        num_live, self._num_pending = self._num_pending, 0
        # Eager parts between segments make their calls again.
        self.on_forward(inputs.num_decode_tokens)
        with self._live(num_live):
            yield

    def on_logits(self, logits: Tensor) -> None:
        """Scan the logits [n, vocab] float32 that the engine returns."""
        # All rows: only those of requests are left here.
        with self._live(-1):
            self._watch(HANDED_OUT, "logits", "output", logits, 0, rows="answers")

    def _note_rows(self, ordered: list[ScheduledSequence]) -> None:
        ends, end = [], 0
        for item in ordered:
            ends.append((str(item.sequence.request), end, end := end + item.num_new_tokens))
        first = sum(item.num_new_tokens for item in ordered if item.is_decode)
        answers, row = [], 0
        for item in ordered:
            answers.append((str(item.sequence.request), row, row := row + item.num_rows))
        prompts = [
            (name, start - first, end - first) for name, start, end in ends if start >= first
        ]
        requests = [(name, index, index + 1) for index, (name, _, _) in enumerate(ends)]
        self.notes.note(
            self._step,
            {"batch": ends, "prefill": prompts, "answers": answers, "requests": requests},
        )
        decodes = sum(item.is_decode for item in ordered)
        phase = "decode" if decodes == len(ordered) else "mixed" if decodes else "prefill"
        self.table.set_clock(self._step, phase)

    @contextlib.contextmanager
    def _live(self, num_rows: int) -> Iterator[None]:
        """Count the first `num_rows` rows of each tensor as live within the block; all rows for
        -1.
        """
        self.table.live.fill_(num_rows)
        try:
            yield
        finally:
            self.table.live.fill_(0)

    def before_launch(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Scan the inputs before the launch: it may crash."""
        kernel = kernel_of(function)
        if kernel is not None:
            call = self._call(kernel.spec.name)
            self._scan_inputs(kernel, args, kwargs, call)
            return kernel, args, call
        name = name_of(function)
        call = self._call(name)
        if name == "apply_experts" and self.inputs:
            for what, value in zip(("x", "weights"), (args[0], args[2]), strict=True):
                self._watch(name, what, "input", value, call)
        return name, args, call

    def after_launch(self, noted: Any, result: Any) -> None:
        launched, args, call = noted
        if isinstance(launched, BoundKernel):
            self._scan_outputs(launched, args, result, call)
        elif self._ids is not None and args and args[0] is self._ids:
            # An id of no expert comes before its consequence, the first NaN.
            self._watch(
                "hand_over_ids",
                "ids",
                "output",
                result,
                call,
                limit=self._num_experts,
                bad=NO_EXPERT,
            )
            self._ids = None
        elif launched == "_gather":
            self._watch("gather_context", "latents", "output", result, call, axis=None)
        elif (
            isinstance(result, Tensor)
            and result.is_floating_point()
            and result.shape[:1] == (self._num_tokens,)
        ):
            self._watch(launched, "result", "output", result, call)

    def _scan_inputs(
        self, kernel: BoundKernel, args: tuple[Any, ...], kwargs: dict[str, Any], call: int
    ) -> None:
        op, name = OPS.get(kernel.spec.op), kernel.spec.name
        if op.name in PLANNING:
            # The plain function: a plan that is made to compare with is no launch of the run, and
            # not poisoned.
            self._planners[op.name] = (kernel.spec.load(), kwargs)
        if not self.inputs:
            return
        given = dict(zip(op.positional, args, strict=False))
        for what in op.finite:
            value = given.get(what)
            if isinstance(value, Tensor):
                letters, value = with_token_axis(op.arguments[what].shape, value)
                # Rows of keys are no tokens of the batch.
                axis = letters.index("T") if "T" in letters else None
                self._watch(name, what, "input", value, call, axis=axis, rows=op.tokens)
        if op.watched_rows is not None and not args[0].is_cuda:
            code = part_of(op.name, op.watched_rows.code)
            found = launch_unseen(code, args, kwargs)
            for (what, kind), value in zip(op.watched_rows.tensors.items(), found, strict=True):
                self._watch(name, what, kind, value, call, rows="requests")
        self._scan_plan(kernel, given, kwargs, call)

    def _scan_plan(
        self, kernel: BoundKernel, given: dict[str, Any], kwargs: dict[str, Any], call: int
    ) -> None:
        """Whether the plan of a call is the one that its planner makes for the same lengths."""
        if (plan := OPS.get(kernel.spec.op).planned_keyword) is None:
            return
        keyword, op = plan
        if op in self._planners and kwargs.get(keyword) is not None:
            lengths = [given[name] for name in OPS.get(op).positional]
            differs = launch_unseen(differs_from_plan, self._planners[op], kwargs[keyword], lengths)
            name = kernel.spec.name
            self._watch(name, keyword, "input", differs, call, axis=None, limit=1, bad=STALE)

    def _scan_outputs(
        self, kernel: BoundKernel, args: tuple[Any, ...], result: Any, call: int
    ) -> None:
        op, name = OPS.get(kernel.spec.op), kernel.spec.name
        values = result if isinstance(result, tuple) else (result,)
        for output, value in zip(op.outputs, values, strict=False):
            if output.is_partly_undefined or not isinstance(value, Tensor):
                continue
            limit, bad = -1, NOT_FINITE
            if output.ids_of:
                limit, bad = size_of(output.ids_of, op, args), NO_EXPERT
                # The launch that hands over these ids is found by its first argument, which is this
                # very tensor.
                self._num_experts, self._ids = limit, value
            letters, value = with_token_axis(output.shape, value)
            if op.written_tokens:
                value = _written(op, value, letters.index("T"), args)
            axis = letters.index("T") if "T" in letters else 0 if value.shape[0] > 1 else None
            self._watch(
                name,
                output.name,
                "output",
                value,
                call,
                axis=axis,
                rows=op.tokens,
                limit=limit,
                bad=bad,
            )

    def _module_hook(self, path: str) -> Callable[..., None]:
        layer = layer_of(path)

        def hook(module: nn.Module, args: Any, result: Any) -> None:
            self._layer = layer
            if isinstance(result, Tensor) and result.is_floating_point():
                call = self._call(path)
                if (
                    self.inputs
                    and args
                    and isinstance(args[0], Tensor)
                    and args[0].is_floating_point()
                ):
                    self._watch(path, "input", "input", args[0], call)
                self._watch(path, "output", "output", result, call)

        return hook

    def _call(self, name: str) -> int:
        key = f"{self._layer} {name}"
        self._calls[key] = self._calls.get(key, -1) + 1
        return self._calls[key]

    def _watch(
        self,
        op: str,
        tensor: str,
        kind: Kind,
        value: Tensor,
        call: int,
        *,
        axis: int | None = 0,
        rows: str = "batch",
        limit: int = -1,
        bad: str = NOT_FINITE,
    ) -> None:
        """Scan one tensor.

        Its rows are attributed to requests only if it has one row per row of the batch.
        """
        layer = self._layer
        if rows == "batch" and axis is not None and value.shape[axis] != self._num_tokens:
            rows = ""
        elif rows == "decode":
            # Decodes stand first in a batch, so the rows of the batch are theirs too.
            rows = "batch"
        key = (layer, op, tensor, kind, call, axis is None)
        slot = Slot(
            op, tensor, kind, layer, (layer, op, call), rows if axis is not None else "", limit, bad
        )
        self.table.watch(key, slot, value, axis)


def with_token_axis(shape: str, value: Tensor) -> tuple[list[str], Tensor]:
    """One axis T in place of the axes of B requests and their S query tokens.

    `shape` has the letters of a contract, such as "B S H D". value [B, S, ...], with its axes in
    the order of the letters, has any dtype, such as bfloat16. Returns the new letters and the
    tensor; without these two axes both come back as they are.
    """
    letters = shape.split()
    if not {"B", "S"} <= set(letters):
        return letters, value
    axes = (letters.index("B"), letters.index("S"))
    others = [letter for letter in letters if letter not in ("B", "S")]
    return ["T", *others], value.movedim(axes, (0, 1)).flatten(0, 1)


def size_of(letter: str, op: Op, args: tuple[Any, ...]) -> int:
    """The size that a letter has in a call with these arguments by position.

    Raises KeyError for a letter of no argument.
    """
    for argument, value in zip(op.arguments.values(), args, strict=False):
        if letter in (letters := argument.shape.split()):
            return int(value.shape[letters.index(letter)])
    raise KeyError(letter)


def _written(op: Op, value: Tensor, axis: int, args: tuple[Any, ...]) -> Tensor:
    """The rows along `axis` that the op writes, zeros in the others. For eager steps only."""
    keep = part_of(op.name, op.written_tokens)(args, value.shape[axis]).to(value.device)
    shape = [1] * value.ndim
    shape[axis] = -1
    return torch.where(keep.view(shape), value, torch.zeros_like(value))


def differs_from_plan(planner: Planner, metadata: Any, lengths: list[Tensor]) -> Tensor:
    """Compare a plan with a fresh plan for the same lengths [B] int32, the planner's arguments.

    Returns [1, n] int32: 1 for each element of the plan that differs, else 0.
    """
    function, options = planner
    fresh = function(*lengths, **options)
    pairs = zip(tensors_of(metadata), tensors_of(fresh), strict=True)
    return torch.cat([(ours.flatten() != theirs.flatten()).int() for ours, theirs in pairs]).view(
        1, -1
    )


@contextlib.contextmanager
def recorder_on(device: str = "cpu", *, inputs: bool = True) -> Iterator[EngineRecorder]:
    """A recorder for engines on `device`.

    Its hooks are removed from the model at the end of the block.
    """
    recorder = EngineRecorder(Table(torch.device(device)), inputs)
    recorder.table.live.fill_(0)
    try:
        yield recorder
    finally:
        recorder.detach()
