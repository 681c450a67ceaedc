"""The first-NaN recorder in a vLLM worker: `MLA_HARNESS_FIRST_NAN=1 vllm serve ...`, or a folder instead of 1.

Each worker hooks its model's modules when it is loaded, before anything is compiled or captured, and besides them the
two forms of MLA attention and the choice of experts, which run inside one op for the compiler. Nothing is read back
until somebody asks: `kill -USR2 PID` makes the worker tell, at the end of the step that is under way if there is one.
The end of the process does too where it is not killed, as does `told.tell` in a served case. It tells on standard
error, and in a folder as `first-nan-rank<N>.json`.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from harness.core.files import write_atomic
from harness.engines.vllm.objects import InputBatch, Router, RouterHolder, SchedulerOutput
from harness.engines.vllm.serve.hooks import Runner, runners
from harness.engines.vllm.serve.writes import worker_rank
from harness.memory.first_nan.modules import ModuleRecorder, layer_of
from harness.memory.first_nan.report import FirstNan, StepNotes, describe
from harness.memory.first_nan.scan import can_watch
from harness.memory.first_nan.table import Slot, Table

ATTENTION = ("forward_mqa", "forward_mha")
"""Methods of an MLA layer's `impl`: decodes return (out, lse), prefills write their argument `output`."""
RECORDERS: list[WorkerRecorder] = []
"""Those of this process, for whoever asks a worker from outside."""
FILE = "first-nan-rank{rank}.json"
"""What a rank tells, where a folder was named."""


def install(where: str) -> list[str]:
    """Wrap `load_model` and `execute_model` of every runner that this vLLM has; returns which."""
    # Compiled code of a run without the recorder holds no scans.
    os.environ.setdefault("VLLM_DISABLE_COMPILE_CACHE", "1")
    wrapped = []
    for path, runner in runners():
        runner.load_model = _attaching(runner.load_model, where)
        runner.execute_model = _stepping(runner.execute_model)
        wrapped.append(path)
    return wrapped


def _attaching(original: Callable[..., Any], where: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def load_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        if not hasattr(self, "_mla_harness_first_nan"):
            self._mla_harness_first_nan = WorkerRecorder(self, where)
        return result

    return load_model


def _stepping(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def execute_model(self: Runner, scheduler_output: SchedulerOutput, *args: Any, **kwargs: Any) -> Any:
        recorder: WorkerRecorder | None = getattr(self, "_mla_harness_first_nan", None)
        if recorder is None or kwargs.get("dummy_run"):
            return original(self, scheduler_output, *args, **kwargs)
        with recorder.step(scheduler_output):
            return original(self, scheduler_output, *args, **kwargs)

    return execute_model


class WorkerRecorder:
    """The recorder of one worker: its table lives on the worker's GPU from before the first capture."""

    def __init__(self, runner: Runner, where: str) -> None:
        self._runner = runner
        self._folder = None if where == "1" else Path(where)
        self.rank = worker_rank()
        self.table = Table(torch.device(runner.device))
        # Warm-ups, captures and dummy runs are nobody's.
        self.table.live.fill_(0)
        self.notes = StepNotes()
        self._step = -1
        self._asked = False
        self._is_stepping = False
        model = runner.get_model()
        self._modules = ModuleRecorder(self.table)
        self._modules.attach(model, counts_steps=False)
        self.num_ops = sum(self._watch_ops(path, module) for path, module in model.named_modules())
        RECORDERS.append(self)
        self._tell_how()

    def step(self, scheduler_output: SchedulerOutput) -> Step:
        """What stands around one step: which rows are live, and whose they were."""
        self._step += 1
        return Step(self, self._step, scheduler_output)

    def begin(self, step: int, scheduler_output: SchedulerOutput) -> None:
        """Queue the step's clock and live rows on the current stream, ahead of its work."""
        self._is_stepping = True
        counts = scheduler_output.num_scheduled_tokens
        prompts = len(scheduler_output.scheduled_new_reqs)
        phase = "decode" if not prompts and all(count == 1 for count in counts.values()) else "mixed"
        self.table.set_clock(step, "prefill" if prompts and prompts == len(counts) else phase)
        # The second runner warms up with requests of its own, which go the way of real ones.
        warms_up = bool(counts) and all("warmup_" in name and name.startswith("_") for name in counts)
        self.table.live.fill_(0 if warms_up else scheduler_output.total_num_scheduled_tokens)

    def end(self, step: int, scheduler_output: SchedulerOutput) -> None:
        """Note whose rows they were, and answer if somebody asked."""
        self.table.live.fill_(0)
        spans, end = [], 0
        for name in request_order(self._runner, scheduler_output.num_scheduled_tokens):
            spans.append((name, end, end := end + scheduler_output.num_scheduled_tokens[name]))
        self.notes.note(step, {"batch": spans})
        self._is_stepping = False
        if self._asked:
            self._asked = False
            self.tell()

    def report(self) -> FirstNan | None:
        """Who wrote the first live value that is not finite in this worker. Waits for the device."""
        return describe(self.table, self.notes, self.rank)

    def tell(self) -> None:
        """Say it on standard error and, where a folder was named, write it there."""
        found = self.report()
        text = found.statement if found else "no watched live value was anything but finite"
        print(f"mla-harness: first NaN, rank {self.rank}, after {self._step + 1} steps: {text}", file=sys.stderr)
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            content = (found or FirstNan(rank=self.rank)).model_dump_json(indent=1)
            write_atomic(self._folder / FILE.format(rank=self.rank), content + "\n")

    def ask(self, *_: Any) -> None:
        """Have it told now, or at the end of the step that is under way: a signal may come in the middle of a launch.

        A server without requests has no next step, and vLLM kills its workers when it ends.
        """
        self._asked = self._is_stepping
        if not self._is_stepping:
            with torch.inference_mode():
                self.tell()

    def _tell_how(self) -> None:
        how = ""
        if hasattr(signal, "SIGUSR2"):
            try:
                signal.signal(signal.SIGUSR2, self.ask)
                how = f"; ask with: kill -USR2 {os.getpid()}"
            except ValueError:
                how = "; it tells at the end"  # not the main thread
        atexit.register(self.tell)
        print(
            f"mla-harness: first-NaN recorder on rank {self.rank}: {len(self.table.slots)} tensors, "
            f"{self.num_ops} ops of attention and routing{how}", file=sys.stderr,
        )  # fmt: skip

    def _watch_ops(self, path: str, module: nn.Module) -> int:
        """Wrap what a module calls that is no module: attention of either form, and the choice of experts."""
        found, impl = 0, getattr(module, "impl", None)
        for name in ATTENTION if impl is not None and not isinstance(impl, nn.Module) else ():
            if hasattr(impl, name) and name not in vars(impl):
                setattr(impl, name, self._watched_attention(getattr(impl, name), f"{path}.{name}", layer_of(path)))
                found += 1
        for holder in (module, getattr(module, "runner", None)):
            router = router_of(holder)
            if router is not None and "select_experts" not in vars(router):
                vars(router)["select_experts"] = self._watched_router(router, f"{path}.select_experts", layer_of(path))
                found += 1
        return found

    def _watched_attention(self, original: Callable[..., Any], name: str, layer: int | None) -> Callable[..., Any]:
        signature = inspect.signature(original)
        place = f"{name} result"
        # Decodes are the first rows of a batch; where prompts begin is not known here.
        rows = "batch" if name.endswith("mqa") else ""
        number = self.table.slot(place, Slot(name, "output", layer=layer, call=place, rows=rows))

        @functools.wraps(original)
        def attend(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            out = result[0] if isinstance(result, tuple) else signature.bind(*args, **kwargs).arguments.get("output")
            if number is not None and isinstance(out, torch.Tensor) and can_watch(out):
                self.table.scan(number, out)
            return result

        return attend

    def _watched_router(self, router: Router, name: str, layer: int | None) -> Callable[..., Any]:
        original, limit = router.select_experts, int(router.global_num_experts)
        slot = Slot(name, "topk_ids", layer=layer, call=name, rows="batch", limit=limit, bad="no expert's id")
        number = self.table.slot(name, slot) if limit else None

        @functools.wraps(original)
        def select_experts(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            ids = result[1]
            if number is not None and ids.dtype in (torch.int32, torch.int64) and ids.numel():
                self.table.scan(number, ids, limit=limit)
            return result

        return select_experts


class Step:
    """One step of a worker, as a block."""

    def __init__(self, recorder: WorkerRecorder, number: int, scheduler_output: SchedulerOutput) -> None:
        self._recorder = recorder
        self._number = number
        self._scheduler_output = scheduler_output

    def __enter__(self) -> None:
        with torch.inference_mode():
            self._recorder.begin(self._number, self._scheduler_output)

    def __exit__(self, *_: object) -> None:
        with torch.inference_mode():
            self._recorder.end(self._number, self._scheduler_output)


def router_of(holder: RouterHolder | Any) -> Router | None:
    """Who chooses experts for a module of experts, or for the runner of one; None for any other module."""
    return holder.router if hasattr(getattr(holder, "router", None), "select_experts") else None


def request_order(runner: Runner, counts: dict[str, int]) -> list[str]:
    """The requests of a step in the order of their rows: the first runner keeps it, the second sorts by tokens."""
    batch: InputBatch | None = getattr(runner, "input_batch", None)
    if batch is not None:
        return [name for name in batch.req_ids if name in counts]
    return sorted(counts, key=lambda name: counts[name])
