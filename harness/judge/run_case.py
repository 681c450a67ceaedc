"""One job from top to bottom, inside a worker: skip check, bug, target, answer.

As a module, `python -m harness.judge.run_case`, it is the child process that compute-sanitizer
watches.
"""

from __future__ import annotations

import importlib
import time
import traceback
from collections.abc import Callable, Iterator, Sequence

import torch
from torch_poison.errors import PoisonError

from harness.cell.plugins import load_kernels
from harness.core.cases import AskFirstNan, AskVerdict, Case, Job, JobBatch
from harness.core.catalog import FAULTS, KERNELS, SYSTEMS
from harness.core.cause_codes import Code, WhyNot
from harness.core.corruptions import corruptions
from harness.core.cuda_failures import in_one_line, is_out_of_memory
from harness.core.engine_params import EngineParams
from harness.core.errors import (
    LOG_TAIL,
    BrokenPlugin,
    HarnessError,
    InputError,
    NoMemoryError,
    NoRoomError,
    Refused,
    explained_writes,
    line_of,
    message_of,
    stack_of,
)
from harness.core.extras import MissingPackage, why_module_missing
from harness.core.kernels import BUILT_IN
from harness.core.op_params import KERNEL_PARAMS
from harness.core.params import Record
from harness.core.records import CaseResult, Verdict
from harness.core.registry import attribute_at
from harness.core.seams import inject
from harness.judge.outcome import Outcome
from harness.judge.target import class_of
from harness.judge.verdict import verdict, watching_plugins
from harness.kernels.call import keeping_output_sites
from harness.kernels.plugins import find_kernel
from harness.kernels.process_state import watching
from harness.memory.triton_interpreter import too_many_tokens
from harness.run.protocol import answer_each


def _first_nan(job: Job) -> Outcome:
    # It knows the engine, which a kernel case never needs.
    from harness.judge.first_reader import first_nan

    return first_nan(job)


ANSWERS: dict[type, Callable[[Job], Outcome]] = {AskVerdict: verdict, AskFirstNan: _first_nan}
"""The function that answers each kind of ask."""
IMPORTED_LATER = (
    "harness.accuracy.baselines",
    "harness.accuracy.judge",
    "harness.evidence.compare",
    "harness.evidence.decisions",
    "harness.evidence.thresholds",
    "torch_poison.scan",
)
"""What oracles import inside their functions."""


def prepare() -> None:
    """Do once what each case of a kernel or of the reference engine would do, in the process that
    forks for them.
    """
    for system in ("kernel", "engine"):
        attribute_at(SYSTEMS.get(system).target)
    for module in IMPORTED_LATER:
        importlib.import_module(module)
    # The kernels of all ops in torch: together they take less time than the fork of one worker, and
    # each worker of the process has them. Triton's take long, so a case loads its own.
    for spec in KERNELS:
        if spec.origin == BUILT_IN and not spec.requires:
            spec.load()
    # Pydantic makes the validators of a model when it is first used.
    models: tuple[type[Record], ...] = (CaseResult, Job, EngineParams, *KERNEL_PARAMS.values())
    for model in models:
        model.model_rebuild()
    for op in KERNEL_PARAMS:
        corruptions(op)
    # The first reading of what never changes takes most of the time, so it is made before the
    # forks.
    with watching("this process"):
        pass


def run_case(job: Job) -> CaseResult:
    """Run one job and answer its ask.

    A failure of the harness is verdict `error`, but a full disk is a NoRoomError.
    """
    started = time.perf_counter()
    worked = time.process_time()
    result = outcome_of(job).result_of(job, time.perf_counter() - started)
    return result.but(cpu_seconds=time.process_time() - worked)


def outcome_of(job: Job) -> Outcome:
    """As `run_case`, with the runs of the case."""
    try:
        with explained_writes(who=job.case.id):
            return _outcome(job)
    except NoRoomError:
        raise
    except Refused as error:
        if error.kernel:
            return Outcome(
                Verdict.SKIP,
                f"{error.kernel}: {message_of(error)}",
                Code.KERNEL_REFUSED,
                shown=error.shown,
            )
        return Outcome(Verdict.SKIP, message_of(error), Code.REFUSED, shown=error.shown)
    except NoMemoryError as error:
        return Outcome(Verdict.SKIP, str(error), Code.NO_MEMORY)
    except BrokenPlugin as error:
        return Outcome(Verdict.ERROR, str(error), Code.BROKEN_PLUGIN)
    except MissingPackage as error:
        return Outcome(Verdict.SKIP, str(error), Code.NOT_INSTALLED)
    except (HarnessError, PoisonError) as error:
        return Outcome(Verdict.ERROR, str(error), Code.HARNESS, at=_raised_at(error))
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and (missing := why_module_missing(error)):
            return _skip([missing])
        if is_out_of_memory(error):
            # Outside a kernel, so it is ours: a pool, a reference, a copy to compare with.
            return Outcome(
                Verdict.SKIP, f"the harness needs more memory: {in_one_line(error)}", Code.NO_MEMORY
            )
        reason = f"{type(error).__name__}: {message_of(error).strip()}".partition("\n")[0]
        log = stack_of(error)[-LOG_TAIL:]
        return Outcome(Verdict.ERROR, reason, Code.HARNESS, at=_raised_at(error), log=log)


def look(job: Job) -> CaseResult:
    """Whether this machine can run a job, without running it: a skip if not, else `not-run`."""
    reasons = obstacles(job.case, job.device, job.fault)
    return (_skip(reasons) if reasons else Outcome(Verdict.NOT_RUN)).result_of(job, 0.0)


def _skip(reasons: Sequence[WhyNot]) -> Outcome:
    lacks = {reason.lacks: reason.command for reason in reasons if reason.lacks}
    return Outcome(Verdict.SKIP, reasons[0].sentence, reasons[0].cause, lacks=lacks)


def _raised_at(error: Exception) -> str:
    return line_of(traceback.extract_tb(error.__traceback__)[-1])


def _outcome(job: Job) -> Outcome:
    # A verdict on a kernel is to be had in a minute. A run takes its time.
    if job.cell and (reason := too_many_tokens(job.case.params.num_call_tokens)):
        return _skip([reason])
    try:
        load_kernels(job.plugins, job.cell)
    except InputError as error:
        raise BrokenPlugin(str(error)) from error
    if reasons := obstacles(job.case, job.device, job.fault):
        return _skip(reasons)
    # A kernel may draw numbers by itself: they must be the same for each pattern and each trial.
    torch.manual_seed(job.case.seed)
    # A bug of a real engine is injected in the process that imports that engine.
    if job.fault is None or class_of(job.case).injects_faults:
        return _answer(job)
    with inject(FAULTS.get(job.fault)) as injection:
        outcome = _answer(job)
    # A fault whose code never ran was not missed by an oracle. The two have different words.
    is_missed = outcome.verdict is Verdict.PASS and isinstance(job.ask, AskVerdict)
    return _unreached(job) if is_missed and not injection.was_reached else outcome


def _answer(job: Job) -> Outcome:
    # Each run of a verdict is watched as well. Here it is for the other asks.
    with watching_plugins(job), keeping_output_sites():
        return ANSWERS[type(job.ask)](job)


def _unreached(job: Job) -> Outcome:
    """The outcome if no run reached the code of the fault: the fault is neither caught nor
    missed.
    """
    if job.device == "cuda" and job.case.kind.uses_twins:
        names = ", ".join(job.case.kernels().values())
        reason = f"the code of {job.fault} is not run on CUDA, where this case has {names}"
        return Outcome(Verdict.SKIP, reason, Code.NOT_REACHED)
    return Outcome(Verdict.PASS, f"no run came to the code of {job.fault}", Code.NOT_REACHED)


def obstacles(case: Case, device: str, fault: str | None = None) -> list[WhyNot]:
    """Why this machine or a kernel of the case cannot run it: the reason of `why_not`, then what is
    known to stand behind it. Empty if it can.
    """
    first = why_not(case, device, fault)
    return [first, *_behind(first, case, device)] if first else []


def _behind(first: WhyNot, case: Case, device: str) -> Iterator[WhyNot]:
    """What a case lacks besides the GPU or the package that it was skipped for."""
    if torch.cuda.is_available() or not first.lacks:
        return
    if first.cause is Code.NOT_INSTALLED and case.kind.needs_gpu:
        yield WhyNot.no_gpu()
    if first.cause is Code.NO_DEVICE and device == "cuda":
        for parameter, op in case.kind.kernels_of(case.op).items():
            spec = find_kernel(op, getattr(case.params, parameter))
            # A plug-in's own question may need the device that is not there.
            reason = None if spec.is_plugin else spec.why_not(device)
            if reason and reason.cause is Code.NOT_INSTALLED:
                yield reason


def why_not(case: Case, device: str, fault: str | None = None) -> WhyNot | None:
    """Why this machine or a kernel of the case cannot run it, in a sentence; None if it can."""
    if case.kind.unusable:
        return WhyNot(case.kind.unusable, Code.BROKEN_TABLES)
    if device == "cuda" and not torch.cuda.is_available():
        return WhyNot.no_gpu()
    for parameter, op in case.kind.kernels_of(case.op).items():
        spec = find_kernel(op, getattr(case.params, parameter))
        if reason := spec.why_not(device):
            return reason
        if reason := spec.why_not_params(case.params):
            return reason
        if not spec.gives_lse and parameter in case.params.READS_LSE - case.params.idle_kernels():
            return WhyNot(
                f"{spec.name} gives no lse, and the merge of context reads it", Code.UNSUPPORTED
            )
    return class_of(case).why_not(case, device, fault)


if __name__ == "__main__":
    answer_each(
        JobBatch, lambda batch: (run_case(job).model_dump(mode="json") for job in batch.jobs)
    )
