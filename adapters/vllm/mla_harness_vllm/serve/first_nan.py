"""The first-NaN recorder in a vLLM worker:

`MLA_HARNESS_FIRST_NAN=1 vllm serve ...`, or a folder instead of 1.

Each worker hooks the modules of its model right after loading, before anything is compiled or
captured. It also hooks the two forms of MLA attention and the choice of experts, which are parts of
one op for the compiler.

Results stay on the GPU until a report is requested: by `kill -USR2 PID`, by
`worker_state.state_of_worker`, or by the end of a process that is not killed. During a step the
report waits for the end of the step. It goes to standard error, and to `first-nan-rank<N>.json` if
a folder is given.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import inspect
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from harness.api import FirstNan, StepRecorder
from mla_harness_adapters.report import keep_first_nan
from mla_harness_vllm.objects import InputBatch, Router, RouterHolder, SchedulerOutput
from mla_harness_vllm.serve.hooks import Runner, runners
from mla_harness_vllm.serve.writes import worker_rank

ATTENTION = ("forward_mqa", "forward_mha")
"""Methods of an MLA layer's `impl`.

Decodes return (out, lse); prefills write to their argument `output`.
"""
RECORDERS: list[WorkerRecorder] = []
"""The recorders of this process."""


def install(where: str) -> None:
    """Wrap `load_model` and `execute_model` of every runner of this release."""
    # Cached code was compiled without the recorder's scans.
    os.environ.setdefault("VLLM_DISABLE_COMPILE_CACHE", "1")
    for runner in runners():
        runner.load_model = _attaching(runner.load_model, where)
        runner.execute_model = _stepping(runner.execute_model)


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
    def execute_model(
        self: Runner, scheduler_output: SchedulerOutput, *args: Any, **kwargs: Any
    ) -> Any:
        recorder: WorkerRecorder | None = getattr(self, "_mla_harness_first_nan", None)
        if recorder is None or kwargs.get("dummy_run"):
            return original(self, scheduler_output, *args, **kwargs)
        with recorder.step(scheduler_output):
            return original(self, scheduler_output, *args, **kwargs)

    return execute_model


class WorkerRecorder:
    """The recorder of one worker.

    Its table is allocated on the worker's GPU before the first capture.
    """

    def __init__(self, runner: Runner, where: str) -> None:
        self._runner = runner
        self._folder = None if where == "1" else Path(where)
        self.rank = worker_rank()
        self._is_report_due = False
        self._is_stepping = False
        model = runner.get_model()
        self.steps = StepRecorder(model, torch.device(runner.device))
        self.num_ops = sum(self._watch_ops(path, module) for path, module in model.named_modules())
        RECORDERS.append(self)
        self._announce()

    @contextlib.contextmanager
    def step(self, scheduler_output: SchedulerOutput) -> Iterator[None]:
        """Record one step: set its live rows before it, and note the request of each row after
        it.
        """
        self._begin(scheduler_output)
        try:
            yield
        finally:
            self._end(scheduler_output)

    def _begin(self, scheduler_output: SchedulerOutput) -> None:
        """Queue the step's clock and live rows on the current stream, before the work of the
        step.
        """
        self._is_stepping = True
        counts = scheduler_output.num_scheduled_tokens
        prompts = len(scheduler_output.scheduled_new_reqs)
        phase = (
            "decode" if not prompts and all(count == 1 for count in counts.values()) else "mixed"
        )
        phase = "prefill" if prompts and prompts == len(counts) else phase
        # The second runner warms up with requests of its own, in steps like any other.
        warms_up = bool(counts) and all(
            "warmup_" in name and name.startswith("_") for name in counts
        )
        self.steps.begin(phase, 0 if warms_up else scheduler_output.total_num_scheduled_tokens)

    def _end(self, scheduler_output: SchedulerOutput) -> None:
        self.steps.end()
        spans = []
        end = 0
        for name in request_order(self._runner, scheduler_output.num_scheduled_tokens):
            spans.append((name, end, end := end + scheduler_output.num_scheduled_tokens[name]))
        self.steps.note(spans)
        self._is_stepping = False
        if self._is_report_due:
            self._is_report_due = False
            self.write_report()

    def report(self) -> FirstNan | None:
        """The writer of the worker's first live value that is not finite, if there is one.

        Waits for the device.
        """
        return self.steps.report(self.rank)

    def write_report(self) -> None:
        """Print the report to standard error, and write it to the folder if there is one."""
        found = self.report()
        text = found.statement if found else "all watched live values were finite"
        print(
            f"mla-harness: first NaN, rank {self.rank}, after {self.steps.step + 1} steps: {text}",
            file=sys.stderr,
        )
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            keep_first_nan(self._folder, self.rank, found)

    def request_report(self, *_: Any) -> None:
        """Report now, or at the end of the current step: a signal can arrive in the middle of a
        launch.
        """
        self._is_report_due = self._is_stepping
        if not self._is_stepping:
            # An idle server has no next step, and vLLM kills its workers when it ends.
            self.write_report()

    def _announce(self) -> None:
        """Make the recorder report on a signal and at exit, and print how to request a report."""
        how = ""
        if hasattr(signal, "SIGUSR2"):
            try:
                signal.signal(signal.SIGUSR2, self.request_report)
                how = f"; ask with: kill -USR2 {os.getpid()}"
            except ValueError:
                how = "; it reports at the end"  # not the main thread
        atexit.register(self.write_report)
        watched = (
            f"{len(self.steps.table.slots)} tensors, {self.num_ops} ops of attention and routing"
        )
        print(
            f"mla-harness: first-NaN recorder on rank {self.rank}: {watched}{how}", file=sys.stderr
        )

    def _watch_ops(self, path: str, module: nn.Module) -> int:
        """Wrap attention and the choice of experts, which a module calls and which are no modules.

        Returns how many.
        """
        found = 0
        impl = getattr(module, "impl", None)
        for name in ATTENTION if impl is not None and not isinstance(impl, nn.Module) else ():
            if hasattr(impl, name) and name not in vars(impl):
                setattr(impl, name, self._watched_attention(getattr(impl, name), path, name))
                found += 1
        for holder in (module, getattr(module, "runner", None)):
            router = router_of(holder)
            if router is not None and "select_experts" not in vars(router):
                vars(router)["select_experts"] = self._watched_router(router, path)
                found += 1
        return found

    def _watched_attention(
        self, original: Callable[..., Any], path: str, name: str
    ) -> Callable[..., Any]:
        signature = inspect.signature(original)
        # Decodes are the first rows of a batch. The first row of prefills is unknown here.
        rows = "batch" if name.endswith("mqa") else ""
        scan = self.steps.watched(path, name, call=f"{path}.{name} result", rows=rows)

        @functools.wraps(original)
        def attend(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            out = (
                result[0]
                if isinstance(result, tuple)
                else signature.bind(*args, **kwargs).arguments.get("output")
            )
            if isinstance(out, torch.Tensor):
                scan(out)
            return result

        return attend

    def _watched_router(self, router: Router, path: str) -> Callable[..., Any]:
        original = router.select_experts
        limit = int(router.global_num_experts)
        if not limit:
            return original
        scan = self.steps.watched(
            path,
            "select_experts",
            "topk_ids",
            call=f"{path}.select_experts",
            limit=limit,
            bad="no expert's id",
        )

        @functools.wraps(original)
        def select_experts(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            scan(result[1])
            return result

        return select_experts


def router_of(holder: RouterHolder | Any) -> Router | None:
    """The router of a module of experts or of its runner; None for any other module."""
    return holder.router if hasattr(getattr(holder, "router", None), "select_experts") else None


def request_order(runner: Runner, counts: dict[str, int]) -> list[str]:
    """The requests of a step in the order of their rows: the first runner stores it, the second
    sorts by tokens.
    """
    batch: InputBatch | None = getattr(runner, "input_batch", None)
    if batch is not None:
        return [name for name in batch.req_ids if name in counts]
    return sorted(counts, key=lambda name: counts[name])
