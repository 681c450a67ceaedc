"""One job from top to bottom, inside a worker: skip check, bugs and fixes, target, answer.

As a module, `python -m harness.judge.run_case`, it is the child process that compute-sanitizer watches.
"""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Callable, Iterator

import torch

from harness.core.cases import AskFirstNan, AskReaders, AskVerdict, Case, Job
from harness.core.catalog import FAULTS
from harness.core.errors import HarnessError, Refused
from harness.core.records import CaseResult, Verdict
from harness.core.seams import Injection, inject
from harness.judge import answers
from harness.judge.cures import applied, faults_left
from harness.judge.run_records import Outcome
from harness.judge.target import class_of
from harness.kernels.plugins import find_kernel, load_plugins
from harness.run.protocol import answer_once

ANSWERS: dict[type, Callable[[Job], Outcome]] = {
    AskVerdict: answers.verdict,
    AskFirstNan: answers.first_nan,
    AskReaders: answers.first_reader,
}
"""The function that answers each kind of ask."""


def run_case(job: Job) -> CaseResult:
    """Run one job and answer its ask. Raises no Exception: a failure of the harness is verdict `error`."""
    started = time.perf_counter()
    return outcome_of(job).result_of(job, time.perf_counter() - started)


def outcome_of(job: Job) -> Outcome:
    """As `run_case`, with the runs of the case."""
    try:
        return _outcome(job)
    except Refused as error:
        return Outcome(Verdict.SKIP, str(error))
    except HarnessError as error:
        return Outcome(Verdict.ERROR, str(error))
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).strip()}".partition("\n")[0]
        return Outcome(Verdict.ERROR, reason, log=traceback.format_exc()[-answers.LOG_TAIL :])


def _outcome(job: Job) -> Outcome:
    load_plugins(job.plugins)
    if reason := why_not(job.case, job.device, job.fault):
        return Outcome(Verdict.SKIP, reason)
    torch.manual_seed(job.case.seed)
    with _changed(job) as faults:
        outcome = ANSWERS[type(job.ask)](job)
    if outcome.verdict is Verdict.PASS and not all(fault.was_reached for fault in faults):
        return _unreached(job, outcome)
    return outcome


@contextlib.contextmanager
def _changed(job: Job) -> Iterator[list[Injection]]:
    """Inject the job's bugs into this process, and the fixes around them."""
    injected = () if class_of(job.case).injects_faults else faults_left(job.faults, job.cures)
    with contextlib.ExitStack() as stack:
        faults = [stack.enter_context(inject(FAULTS.get(name))) for name in injected]
        stack.enter_context(applied(job.cures))
        yield faults


def _unreached(job: Job, outcome: Outcome) -> Outcome:
    """The outcome if no run reached the code of a fault: the fault is neither caught nor missed."""
    if not isinstance(job.ask, AskVerdict) or job.cures:
        return outcome
    if job.device == "cuda" and job.case.kind.uses_twins:
        names = ", ".join(job.case.kernels().values())
        return Outcome(Verdict.SKIP, f"the code of {job.fault} is not run on CUDA, where this case has {names}")
    return Outcome(Verdict.PASS, f"no run came to the code of {job.fault}")


def why_not(case: Case, device: str, fault: str | None = None) -> str:
    """Why this machine or a kernel of the case cannot run it, in a sentence; empty if it can."""
    if device == "cuda" and not torch.cuda.is_available():
        return "no CUDA device on this machine"
    for parameter, op in case.kind.kernels_of(case.op).items():
        spec = find_kernel(op, getattr(case.params, parameter))
        if reason := spec.why_not(device):
            return reason
        if reason := spec.why_not_params(case.params):
            return reason
    return class_of(case).why_not(case, device, fault)


if __name__ == "__main__":
    answer_once(Job, lambda job: run_case(job).model_dump(mode="json"))
