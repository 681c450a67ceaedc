"""The first-NaN recorder on the engine: its modules, its kernels' launches, and whose rows they computed.

The scans are launched behind each op, in eager steps and in captures, so that the graphs hold them and replays record.
Live are the rows of requests; those of graph padding, warm-ups, captures and dummy steps are nobody's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from harness.core.ops import OPS, PAGE_SIZE
from harness.engine.capture import DecodeGraphs
from harness.engine.paged_model import PagedModel
from harness.engine.runner import ModelRunner, num_rows
from harness.judge.trace import with_context
from harness.kernels.call import BoundKernel
from harness.memory.first_nan.modules import layer_of
from harness.memory.first_nan.report import FirstNan, StepNotes, describe
from harness.memory.first_nan.table import Kind, Slot, Table
from harness.memory.graph.launch import OBSERVER, WATCHER, launch
from harness.memory.graph.storage import tensors_of

INPUTS = {
    "mla_decode": ("q",),
    "mla_decode_sparse": ("q",),
    "context_attention": ("q", "k", "v"),
    "merge_attn_states": ("suffix_out", "suffix_lse"),
    "write_kv": ("kv_c", "k_pe"),
    "quantize_fp8": ("x",),
    "route_experts": ("logits",),
}
"""Floats that each op is promised: with finite ones, what it returns is its own doing."""
BLIND = {
    "mla_decode_sparse": ("kv_cache",),
    "merge_attn_states": ("prefix_out", "prefix_lse"),
}
"""What else it reads and nobody watches: pages, and rows of tokens without context, which nobody writes."""
TRANSPOSED = ("suffix_lse", "prefix_lse")
OF_PROMPTS = ("context_attention", "merge_attn_states")
NOT_FINITE, NO_EXPERT, STALE = "not finite", "no expert's id", "a plan for other lengths"
HANDED_OUT = "what hands out the logits"


@dataclass(slots=True)
class EngineRecorder:
    """Watches one engine. With `inputs` it scans what ops are given as well; a server has the outputs alone."""

    table: Table
    inputs: bool = True
    notes: StepNotes = field(default_factory=StepNotes)
    _layer: int | None = None
    _num_tokens: int = 0
    _num_experts: int = 0
    _ids: Tensor | None = None
    _planner: tuple[Callable[..., Any], dict[str, Any]] | None = None
    _calls: dict[str, int] = field(default_factory=dict)
    _handles: list[Any] = field(default_factory=list)
    _hooked: set[int] = field(default_factory=set)

    def report(self) -> FirstNan | None:
        """Who wrote the first live value that is not finite, with what of the op is not watched."""
        found = describe(self.table, self.notes)
        if found is None:
            return None
        return found.model_copy(update={"not_watched": BLIND.get(found.writer.partition("/")[0], ())})

    def attach(self, model: nn.Module) -> None:
        """Hook the modules that the engine calls; again for the same model, nothing happens."""
        if id(model) in self._hooked:
            return
        self._hooked.add(id(model))
        for path, module in model.named_modules():
            if path:
                self._handles.append(module.register_forward_hook(self._module_hook(path)))

    def detach(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()

    def begin_forward(self, num_tokens: int) -> None:
        """A forward over T rows begins, run or captured."""
        self._calls.clear()
        self._layer, self._num_tokens = None, num_tokens

    def begin_step(self, step: int, ordered: list[Any]) -> None:
        """Note whose rows a step has, and its phase. No row is live before `run_live`."""
        ends, end = [], 0
        for item in ordered:
            ends.append((str(item.sequence.request), end, end := end + item.num_new_tokens))
        first = sum(item.num_new_tokens for item in ordered if item.is_decode)
        answers, row = [], 0
        for item in ordered:
            answers.append((str(item.sequence.request), row, row := row + num_rows(item)))
        prompts = [(name, start - first, end - first) for name, start, end in ends if start >= first]
        requests = [(name, index, index + 1) for index, (name, _, _) in enumerate(ends)]
        self.notes.note(step, {"batch": ends, "prefill": prompts, "answers": answers, "requests": requests})
        decodes = sum(item.is_decode for item in ordered)
        phase = "decode" if decodes == len(ordered) else "mixed" if decodes else "prefill"
        self.table.set_clock(step, phase)

    @contextlib.contextmanager
    def live(self, num_rows: int) -> Iterator[None]:
        """Within the block the first `num_rows` rows of a batch are somebody's."""
        self.table.live.fill_(num_rows)
        try:
            yield
        finally:
            self.table.live.fill_(0)

    def before(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A launch is about to be made: scan what it is given, so that a crash finds it noted."""
        kernel = getattr(function, "__self__", None)
        if isinstance(kernel, BoundKernel):
            call = self._call(kernel.spec.name)
            self._scan_inputs(kernel, args, kwargs, call)
            return kernel, args, call
        name = getattr(function, "__name__", type(function).__name__)
        call = self._call(name)
        if name == "apply_experts" and self.inputs:
            for what, value in zip(("x", "weights"), (args[0], args[2]), strict=True):
                self._watch(name, what, "input", value, call)
        return name, args, call

    def after(self, noted: Any, result: Any) -> None:
        """A launch was made: scan what it left."""
        maker, args, call = noted
        if isinstance(maker, BoundKernel):
            self._scan_outputs(maker, args, result, call)
        elif self._ids is not None and args and args[0] is self._ids:
            # Ids that are no expert's: the first impossible value, where the first NaN is only what came of it.
            self._watch("hand_over_ids", "ids", "output", result, call, limit=self._num_experts, bad=NO_EXPERT)
            self._ids = None
        elif maker == "_gather":
            self._watch("gather_context", "latents", "output", result, call, axis=None)
        elif isinstance(result, Tensor) and result.is_floating_point() and result.shape[:1] == (self._num_tokens,):
            self._watch(maker, "result", "output", result, call)

    def note_answers(self, logits: Tensor) -> None:
        """Scan the logits that the step's tokens are chosen from, where the engine hands them out."""
        with self.live(-1):
            self._watch(HANDED_OUT, "logits", "output", logits, 0, rows="answers")

    def _scan_inputs(self, kernel: BoundKernel, args: tuple[Any, ...], kwargs: dict[str, Any], call: int) -> None:
        op, name = OPS.get(kernel.spec.op), kernel.spec.name
        if op.name == "mla_decode_plan":
            self._planner = (kernel.spec.load(), kwargs)
        if not self.inputs:
            return
        given = dict(zip(op.positional, args, strict=False))
        rows = "prefill" if op.name in OF_PROMPTS else "batch"
        for what in INPUTS.get(op.name, ()):
            value = given.get(what)
            if isinstance(value, Tensor):
                value = value.flatten(0, 1) if op.name == "mla_decode" else value
                self._watch(name, what, "input", value, call, axis=_token_axis(op.name, what), rows=rows)
        if op.name != "mla_decode":
            return
        if not args[0].is_cuda:
            used, beside = launch_quietly(cache_rows, *args[:4], kwargs.get("window"))
            self._watch(name, "kv_cache in use", "input", used, call, rows="requests")
            self._watch(name, "kv_cache past the lengths", "beside", beside, call, rows="requests")
        if self._planner is not None and kwargs.get("metadata") is not None:
            differs = launch_quietly(differs_from_plan, self._planner, kwargs["metadata"], args[3])
            self._watch(name, "metadata", "input", differs, call, axis=None, limit=1, bad=STALE)

    def _scan_outputs(self, kernel: BoundKernel, args: tuple[Any, ...], result: Any, call: int) -> None:
        op, name = OPS.get(kernel.spec.op), kernel.spec.name
        rows = "prefill" if op.name in OF_PROMPTS else "batch"
        if op.name == "route_experts":
            self._num_experts, self._ids = args[0].shape[-1], result[0]
        values = result if isinstance(result, tuple) else (result,)
        for output, value in zip(op.outputs, values, strict=False):
            letters = output.shape.split()
            if not isinstance(value, Tensor):
                continue
            if op.name == "context_attention":
                value = self._with_context(value, letters, args)
            if op.name == "mla_decode":
                value = value.flatten(0, 1) if output.name == "out" else value.transpose(1, 2).flatten(0, 1)
                letters = ["T"]
            limit, bad = (self._num_experts, NO_EXPERT) if output.name == "ids" else (-1, NOT_FINITE)
            axis = letters.index("T") if "T" in letters else 0 if value.shape[0] > 1 else None
            self._watch(name, output.name, "output", value, call, axis=axis, rows=rows, limit=limit, bad=bad)

    def _with_context(self, value: Tensor, letters: list[str], args: tuple[Any, ...]) -> Tensor:
        """The rows that the op promises; the others as zeros, since nobody writes them. Only ever run eagerly."""
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
                if self.inputs and args and isinstance(args[0], Tensor) and args[0].is_floating_point():
                    self._watch(path, "input", "input", args[0], call)
                self._watch(path, "output", "output", result, call)

        return hook

    def _call(self, name: str) -> int:
        """Which call of this op it is, in its layer and forward."""
        key = f"{self._layer} {name}"
        self._calls[key] = self._calls.get(key, -1) + 1
        return self._calls[key]

    def _watch(
        self, op: str, tensor: str, kind: Kind, value: Tensor, call: int,
        *, axis: int | None = 0, rows: str = "batch", limit: int = -1, bad: str = NOT_FINITE,
    ) -> None:  # fmt: skip
        """Scan one tensor. Where its rows are not those of the batch, whose they are is unknown."""
        layer = self._layer
        if rows == "batch" and axis is not None and value.shape[axis] != self._num_tokens and "decode" not in op:
            rows = ""
        key = (layer, op, tensor, kind, call, axis is None)
        slot = Slot(op, tensor, kind, layer, (layer, op, call), rows if axis is not None else "", limit, bad)
        self.table.watch(key, slot, value, axis)


def _token_axis(op: str, tensor: str) -> int | None:
    """The axis of tokens of an input; None where its rows are no tokens of the batch."""
    if op == "context_attention" and tensor in ("k", "v"):
        return None
    return 1 if tensor in TRANSPOSED else 0


def launch_quietly(function: Callable[..., Any], *args: Any) -> Any:
    """A launch of the recorder's own: recorded by a capture, and shown to nobody."""
    tokens = (OBSERVER.set(None), WATCHER.set(None))
    try:
        return launch(function, *args)
    finally:
        OBSERVER.reset(tokens[0])
        WATCHER.reset(tokens[1])


def differs_from_plan(planner: tuple[Callable[..., Any], dict[str, Any]], metadata: Any, seq_lens: Tensor) -> Tensor:
    """1 for each element [1, n] int32 of a plan that is not what a planner now makes for `seq_lens` [B]."""
    function, options = planner
    fresh = function(seq_lens, **options)
    pairs = zip(tensors_of(metadata), tensors_of(fresh), strict=True)
    return torch.cat([(ours.flatten() != theirs.flatten()).int() for ours, theirs in pairs]).view(1, -1)


def cache_rows(q: Tensor, cache: Tensor, table: Tensor, seq_lens: Tensor, window: int | None) -> tuple[Tensor, Tensor]:
    """What a decode of q [B, S, H, D] reads of a cache [N, P, D]: [B, M * P, D] twice, zeros elsewhere.

    First the slots that a query sees, then those of the last page past the length.
    """
    pages = table.long().clamp(0, cache.shape[0] - 1)
    wide = cache.float() if cache.dtype == torch.float8_e4m3fn else cache
    rows, lengths = wide[pages].flatten(1, 2), seq_lens[:, None]
    position = torch.arange(rows.shape[1])
    first = torch.zeros_like(lengths) if window is None else lengths - window - q.shape[1] + 1
    in_use = ((position < lengths) & (position >= first))[..., None]
    # Of the last page only: entries past it lead to pages that are nobody's.
    past = ((position >= lengths) & (position < -(-lengths // PAGE_SIZE) * PAGE_SIZE))[..., None]
    nothing = torch.zeros_like(rows)
    return torch.where(in_use, rows, nothing), torch.where(past, rows, nothing)


@contextlib.contextmanager
def recorded(device: str = "cpu", *, inputs: bool = True) -> Iterator[EngineRecorder]:
    """Record every engine that is made and run within the block."""
    recorder = EngineRecorder(Table(torch.device(device)), inputs)
    recorder.table.live.fill_(0)
    state: dict[str, Any] = {"step": -1, "pending": 0}
    originals: dict[tuple[type, str], Any] = {
        (owner, name): owner.__dict__[name]
        for owner, name in (
            (PagedModel, "__init__"), (PagedModel, "forward"), (ModelRunner, "_run_eagerly"),
            (ModelRunner, "_run_graph"), (DecodeGraphs, "replay"),
        )
    }  # fmt: skip

    def original(owner: type, name: str) -> Any:
        return originals[owner, name]

    def make(model: Any, causal: nn.Module, *rest: Any, **options: Any) -> None:
        recorder.attach(causal)
        original(PagedModel, "__init__")(model, causal, *rest, **options)

    def forward(model: Any, batch: Any, *rest: Any, **options: Any) -> Any:
        recorder.begin_forward(batch.hidden.shape[0])
        return original(PagedModel, "forward")(model, batch, *rest, **options)

    def begin(ordered: list[Any]) -> int:
        state["step"] += 1
        recorder.begin_step(state["step"], ordered)
        return sum(item.num_new_tokens for item in ordered)

    def run_eagerly(runner: Any, batch: Any, ordered: list[Any], *rest: Any) -> Any:
        with recorder.live(begin(ordered)):
            logits = original(ModelRunner, "_run_eagerly")(runner, batch, ordered, *rest)
        recorder.note_answers(logits)
        return logits

    def run_graph(runner: Any, batch: Any, ordered: list[Any], *rest: Any) -> Any:
        state["pending"] = begin(ordered)
        logits = original(ModelRunner, "_run_graph")(runner, batch, ordered, *rest)
        recorder.note_answers(logits)
        return logits

    def replay(graphs: Any, size: int) -> Any:
        # The eager twin of a step, and the replay of a dummy step, are nobody's.
        num_live, state["pending"] = state["pending"], 0
        with recorder.live(num_live):
            return original(DecodeGraphs, "replay")(graphs, size)

    wrapped = (make, forward, run_eagerly, run_graph, replay)
    token = OBSERVER.set(recorder)
    for (owner, name), wrapper in zip(originals, wrapped, strict=True):
        setattr(owner, name, wrapper)
    try:
        yield recorder
    finally:
        for (owner, name), function in originals.items():
            setattr(owner, name, function)
        OBSERVER.reset(token)
        recorder.detach()
