"""The target of one kernel of one op: poisoned inputs, one call, and only then the float64
reference.

Each op has a builder of its call: the inputs, the shapes that it must return, and the outputs to
judge.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import torch
from torch_poison.patterns import Poison

from harness.cell.fence import FENCE
from harness.core.cases import Case
from harness.core.cause_codes import WhyNot
from harness.core.conditions.table import shown_by
from harness.core.corruptions import Corruption, corruptions_named
from harness.core.errors import Refused, SystemUnderTestError
from harness.core.kernels import KernelSpec
from harness.core.ops import part_of
from harness.core.params import KernelParams
from harness.evidence.records import Run
from harness.judge.target import Target
from harness.judge.targets.corrupted_calls import run_corrupted, why_not_corrupted
from harness.judge.targets.further_launches import repeated, replayed
from harness.judge.targets.influence import influences
from harness.judge.targets.shown_call import show_call
from harness.kernels.plugins import find_kernel
from harness.ops.parts.call import KernelCall, Setting, check_outputs, invoke
from harness.ops.parts.changed import InputChange

MOST_RESERVED = 1 << 30
"""Bytes of GPU memory that a worker may keep from case to case."""


class KernelTarget(Target):
    """One op's kernel on one set of inputs. Raises UnknownNameError for an unknown kernel."""

    def __init__(self, case: Case, device: str = "cpu", **more: Any) -> None:
        super().__init__(case, device, **more)
        self.op = case.op or ""
        self.params = case.params_as(KernelParams)
        self.spec: KernelSpec = find_kernel(self.op, self.params.kernel)
        named = corruptions_named(self.op, self.params.corrupt)
        applying = [one for one in named if not why_not_corrupted(self.spec, self.params, one)]
        # A device that fails ends the run, so the calls that are judged come first.
        self.corruptions = sorted(applying, key=lambda one: not one.is_judged(self.spec))

    @classmethod
    def why_not(cls, case: Case, device: str = "cpu", fault: str | None = None) -> WhyNot | None:
        spec = find_kernel(case.op or "", case.params_as(KernelParams).kernel)
        params = case.params_as(KernelParams)
        if device != "cuda" and params.predecessor == "slow":
            return WhyNot(
                "predecessor: slow needs a GPU, where a kernel may begin before its predecessor has"
                " ended"
            )
        if params.streams == "delayed" and (device != "cuda" or params.cache_layout == "large"):
            return WhyNot(
                "streams: delayed needs a GPU, where a kernel may work on another stream, and"
                " copies of its inputs"
            )
        corruptions = corruptions_named(case.op or "", params.corrupt)
        reasons = [why_not_corrupted(spec, params, one) for one in corruptions]
        if reasons and all(reasons):
            return reasons[0]
        return spec.why_not_graph(device) if case.params.has_graph else None

    @property
    def reader(self) -> str:
        return self.spec.name

    def run(self, poison: Poison) -> Run:
        """Poison the inputs' unowned memory, call the kernel, then compute the expected outputs.

        Before each call that is judged, the kernel is called with other values of the same shapes:
        what it keeps from a call, such as a scale, is wrong in the next one.

        An illegal address, an exception of the kernel or a bad output ends the run early and is
        `Run.error`.
        """
        run = Run(poison.pattern)
        FENCE.set(self.params.fence)
        if self.corruptions:
            make = functools.partial(self.new_call, poison, self.case.seed)
            run_corrupted(run, self.spec, poison, make, self.corruptions, self.device)
            return run
        if self.device == "cuda" and torch.cuda.memory_reserved() > MOST_RESERVED:
            # Workers that share a GPU would each keep gigabytes of an earlier pool.
            torch.cuda.empty_cache()
        call = None
        outputs = None
        earlier = None
        try:
            earlier = self._call_with_other_values(poison)
            call = self.new_call(poison, self.case.seed)
            is_graph = self.params.has_graph
            # A graph plans in each replay. Here it is enough that there is a plan.
            keywords = (
                call.kwargs | {"metadata": call.plan}
                if is_graph
                else call.keywords(is_captured=False)
            )
            # What does not depend on the pattern is looked at once.
            is_main = poison.pattern == self.case.poison.patterns[0]
            if is_main:
                run.shown = shown_by(self.op, call.args, keywords)
            if is_graph:
                result, replays = replayed(self.spec, poison, call)
                run.evidence += replays
            else:
                result = invoke(self.spec, poison, call.args, keywords)
            outputs = check_outputs(self.spec, result, call.shapes, call.dtypes, self.device)
            between = functools.partial(self._call_with_other_values, poison)
            run.evidence += repeated(
                self.spec, poison, call, outputs, self.params.num_launches, between
            )
            self._ask_more(run, poison, call, outputs, is_main=is_main)
        except SystemUnderTestError as error:
            run.error = error
            return run
        except Refused as error:
            error.shown = run.shown or self._conditions(poison)
            if outputs is None:
                raise
            # What the kernel returned before is judged all the same.
            run.refusal = error
        if call is not None and outputs is not None:
            show_call(call, run, outputs)
            self._show_retrial(run, poison, call, outputs, earlier)
        return run

    def _ask_more(
        self,
        run: Run,
        poison: Poison,
        call: KernelCall,
        outputs: tuple[torch.Tensor, ...],
        *,
        is_main: bool,
    ) -> None:
        """Call the kernel as the case asks beside: with one input changed at a time, behind a slow
        kernel, on streams that wait. `is_main`: this is the first pattern of the case.
        """
        if self.params.influence == "each" and is_main:
            run.evidence += influences(
                self.spec,
                poison,
                call,
                outputs,
                lambda change: self.new_call(poison, self.case.seed, change=change),
                self.device,
            )
        if self.params.predecessor == "slow":
            self._run_behind_slow_predecessor(run, call)
        # Where a stream waits is drawn from the case's seed, so one pattern shows it.
        if self.params.streams == "delayed" and is_main:
            self._run_on_delayed_streams(run, call, poison)

    def _show_retrial(
        self,
        run: Run,
        poison: Poison,
        call: KernelCall,
        outputs: tuple[torch.Tensor, ...],
        earlier: Any,
    ) -> None:
        """Add the further calls that oracle `honest` may ask of a kernel in a cell, for its
        `outputs` [...] of the op's shapes and dtypes.
        """
        if not self.spec.is_plugin or run.pattern != self.case.poison.patterns[0]:
            return
        # A case of a kernel that is trusted needs no code of cells.
        from harness.cell.client import cell_of
        from harness.judge.targets.retrials import retrial

        cell = cell_of(self.spec)
        if cell is not None:
            make = functools.partial(self.new_call, poison, self.case.seed)
            run.evidence.append(
                retrial(self.spec, cell, poison, call, outputs, make, earlier, self.device)
            )

    def _run_behind_slow_predecessor(self, run: Run, call: KernelCall) -> None:
        """Launch the call while a kernel before it still writes an input, or reads an output."""
        # Few cases need a GPU that overlaps launches.
        from harness.judge.targets.slow_predecessor import (
            behind_slow_predecessor,
            late_inputs,
            restoring,
            slow_reader,
        )

        launch = behind_slow_predecessor(self.spec, call)
        run.evidence += [
            replace(one, name=f"{one.name} with {name} written late")
            for name, late in late_inputs(self.spec, call, restoring(self.spec, call))
            for one in late(launch)
        ]
        run.evidence += slow_reader(self.spec, launch)

    def _run_on_delayed_streams(self, run: Run, call: KernelCall, poison: Poison) -> None:
        """Launch the call while other streams are delayed at random."""
        from harness.judge.targets.delayed_streams import without_order
        from harness.memory.delayed_streams import DelayedStreams

        streams = DelayedStreams(call.args[0].device, self.case.seed)
        other = self.new_call(poison, self.case.seed ^ 1)
        same = self.new_call(poison, self.case.seed)
        run.evidence.append(without_order(self.case, self.spec, same, other, streams))

    def _conditions(self, poison: Poison) -> dict[str, tuple[str, ...]]:
        """The conditions that the call of this case shows."""
        call = self.new_call(poison, self.case.seed)
        return shown_by(self.op, call.args, call.keywords(is_captured=False))

    def new_call(
        self,
        poison: Poison,
        seed: int,
        corruption: Corruption | None = None,
        change: InputChange | None = None,
    ) -> KernelCall:
        """A call of the case, with new inputs drawn by `seed` and their memory filled."""
        fence = self.params.fence
        setting = Setting(self.spec, poison, seed, self.device, fence, corruption, change)
        call: KernelCall = part_of(self.op, "call:prepare")(self.params, setting)
        call.changed = "".join(setting.changed)
        return call

    def _call_with_other_values(self, poison: Poison, number: int = 0) -> Any:
        """Call the kernel with values drawn for this `number`. Returns its outputs.

        Large pools have no twin: None.
        """
        if self.params.cache_layout == "large":
            return None
        # Other values, and the same ones whenever the case runs again.
        call = self.new_call(poison, self.case.seed ^ (number + 1))
        return invoke(self.spec, poison, call.args, call.keywords(is_captured=False))
