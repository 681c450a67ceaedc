"""The first-NaN recorder on the engine: it scans what modules and launches compute, and names the
request of a row.

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

from harness.core.ops import OPS, PAGE_SIZE
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
from harness.ops.parts.attention import with_context

BLIND = {
    "mla_decode_sparse": ("kv_cache",),
    "merge_attn_states": ("prefix_out", "prefix_lse"),
}
"""Inputs that are read but not scanned: pages, and rows of tokens without context, which are never
written.
"""
TRANSPOSED = ("suffix_lse", "prefix_lse")
PARTLY_WRITTEN = ("index_logits",)
"""Ops with live rows that hold undefined elements: logits past a row's last key."""
OF_PROMPTS = ("context_attention", "merge_attn_states")
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
    _planner: tuple[Callable[..., Any], dict[str, Any]] | None = None
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
        return found.but(not_watched=BLIND.get(found.writer.partition("/")[0], ()))

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
        """Scan the logits [n, vocab] that the engine returns."""
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
        if op.name == "mla_decode_plan":
            self._planner = (kernel.spec.load(), kwargs)
        if not self.inputs:
            return
        given = dict(zip(op.positional, args, strict=False))
        rows = "prefill" if op.name in OF_PROMPTS else "batch"
        for what in op.finite:
            value = given.get(what)
            if isinstance(value, Tensor):
                value = value.flatten(0, 1) if op.name == "mla_decode" else value
                self._watch(
                    name, what, "input", value, call, axis=_token_axis(op.name, what), rows=rows
                )
        if op.name != "mla_decode":
            return
        if not args[0].is_cuda:
            used, beside = launch_unseen(cache_rows, *args[:4], kwargs.get("window"))
            self._watch(name, "kv_cache in use", "input", used, call, rows="requests")
            self._watch(name, "kv_cache past the lengths", "beside", beside, call, rows="requests")
        if self._planner is not None and kwargs.get("metadata") is not None:
            differs = launch_unseen(differs_from_plan, self._planner, kwargs["metadata"], args[3])
            self._watch(name, "metadata", "input", differs, call, axis=None, limit=1, bad=STALE)

    def _scan_outputs(
        self, kernel: BoundKernel, args: tuple[Any, ...], result: Any, call: int
    ) -> None:
        op, name = OPS.get(kernel.spec.op), kernel.spec.name
        rows = "prefill" if op.name in OF_PROMPTS else "batch"
        if op.name == "route_experts":
            self._num_experts, self._ids = args[0].shape[-1], result[0]
        values = result if isinstance(result, tuple) else (result,)
        for output, value in zip(op.outputs, values, strict=False):
            if op.name in PARTLY_WRITTEN:
                continue
            letters = output.shape.split()
            if not isinstance(value, Tensor):
                continue
            if op.name == "context_attention":
                value = self._with_context(value, letters, args)
            if op.name == "mla_decode":
                value = (
                    value.flatten(0, 1)
                    if output.name == "out"
                    else value.transpose(1, 2).flatten(0, 1)
                )
                letters = ["T"]
            limit, bad = (
                (self._num_experts, NO_EXPERT) if output.name == "ids" else (-1, NOT_FINITE)
            )
            axis = letters.index("T") if "T" in letters else 0 if value.shape[0] > 1 else None
            self._watch(
                name, output.name, "output", value, call, axis=axis, rows=rows, limit=limit, bad=bad
            )

    def _with_context(self, value: Tensor, letters: list[str], args: tuple[Any, ...]) -> Tensor:
        """The rows that the op writes, zeros in the others. For eager steps only."""
        axis = letters.index("T")
        keep = with_context(args[3], args[4], value.shape[axis]).to(value.device)
        shape = [1] * value.ndim
        shape[axis] = -1
        return torch.where(keep.view(shape), value, torch.zeros_like(value))

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
        if (
            rows == "batch"
            and axis is not None
            and value.shape[axis] != self._num_tokens
            and "decode" not in op
        ):
            rows = ""
        key = (layer, op, tensor, kind, call, axis is None)
        slot = Slot(
            op, tensor, kind, layer, (layer, op, call), rows if axis is not None else "", limit, bad
        )
        self.table.watch(key, slot, value, axis)


def _token_axis(op: str, tensor: str) -> int | None:
    """The axis of tokens of an input; None where its rows are keys and not tokens of the batch."""
    if op == "context_attention" and tensor in ("k", "v"):
        return None
    return 1 if tensor in TRANSPOSED else 0


def differs_from_plan(
    planner: tuple[Callable[..., Any], dict[str, Any]], metadata: Any, seq_lens: Tensor
) -> Tensor:
    """1 for each element [1, n] int32 of a plan that differs from a fresh plan for `seq_lens` [B],
    else 0.
    """
    function, options = planner
    fresh = function(seq_lens, **options)
    pairs = zip(tensors_of(metadata), tensors_of(fresh), strict=True)
    return torch.cat([(ours.flatten() != theirs.flatten()).int() for ours, theirs in pairs]).view(
        1, -1
    )


def cache_rows(
    q: Tensor, cache: Tensor, table: Tensor, seq_lens: Tensor, window: int | None
) -> tuple[Tensor, Tensor]:
    """The slots of a cache [N, P, D] that a decode of q [B, S, H, D] reads: [B, M * P, D] twice,
    zeros elsewhere.

    The first has the slots that a query sees, the second the slots of the last page past the
    length.
    """
    pages = table.long().clamp(0, cache.shape[0] - 1)
    wide = cache.float() if cache.dtype == torch.float8_e4m3fn else cache
    rows, lengths = wide[pages].flatten(1, 2), seq_lens[:, None]
    position = torch.arange(rows.shape[1])
    first = torch.zeros_like(lengths) if window is None else lengths - window - q.shape[1] + 1
    in_use = ((position < lengths) & (position >= first))[..., None]
    # Table entries past the last page name no page of the request.
    past = ((position >= lengths) & (position < -(-lengths // PAGE_SIZE) * PAGE_SIZE))[..., None]
    nothing = torch.zeros_like(rows)
    return torch.where(in_use, rows, nothing), torch.where(past, rows, nothing)


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
