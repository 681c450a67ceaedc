"""The child process that runs cases: `python -m harness.run.worker`. A kernel may end it."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import traceback
from collections.abc import Callable
from typing import Any

from harness.core import cuda_failures
from harness.core.cases import Job
from harness.core.catalog import ENGINES
from harness.core.cause_codes import Code
from harness.core.errors import (
    LOG_TAIL,
    HarnessError,
    NoRoomError,
    line_of,
    message_of,
    named,
    stack_of,
)
from harness.core.findings import Finding
from harness.core.records import CaseResult, Verdict
from harness.core.registry import attribute_at
from harness.run import threads
from harness.run.environment import describe_machine
from harness.run.protocol import Parent, Reply, reply_to_error, run_child
from harness.run.requests import WorkerRequest

DEFAULT_EXECUTE = "harness.judge.run_case:run_case"
"""The "module:function" that turns a Job into a CaseResult."""
LOOK = "harness.judge.run_case:look"
"""The "module:function" that says whether a Job can run here, and runs nothing."""
PREPARE = {DEFAULT_EXECUTE: "harness.judge.run_case:prepare"}
"""The function that executes jobs -> the one that a process calls once, before it forks."""
DESCRIBE = "harness.cell.plugins:describe_kernels"
"""The "module:function" that returns what the kernels of plug-in files declare."""

Execute = Callable[[Job], CaseResult]


def answer(job: Job, execute: Execute) -> CaseResult:
    """Execute one job.

    An unexpected exception is an error of the harness; an exit that a kernel raises is a crash.

    Raises NoRoomError: a full disk is no result of the job.
    """
    try:
        return execute(job)
    except NoRoomError:
        raise
    except Exception as error:
        at = line_of(traceback.extract_tb(error.__traceback__)[-1])
        return _unexpected(job, Verdict.ERROR, named(error), error, cause=Code.HARNESS, at=at)
    except BaseException as error:
        name = type(error).__name__
        sentence = f"the kernel raised {name}({message_of(error)})"
        finding = Finding(oracle="crash", message=sentence, cause=Code.RAISED, error=name)
        return _unexpected(job, Verdict.CRASH, sentence, error, findings=(finding,))


def _unexpected(
    job: Job, verdict: Verdict, reason: str, error: BaseException, **more: Any
) -> CaseResult:
    return CaseResult.of(job, verdict, reason=reason, log=stack_of(error)[-LOG_TAIL:], **more)


def reply_to(request: WorkerRequest, execute: Execute) -> Reply:
    """The reply to a request: the kernels that files declare, or the result of a job.

    A job on CUDA runs on the GPU of the request. A file that does not load is refused.
    """
    if request.describe is not None:
        try:
            return Reply(result={"kernels": attribute_at(DESCRIBE)(request.describe, request.cell)})
        except HarnessError as error:
            return reply_to_error(error)
    assert request.job is not None
    if request.gpu is None:
        return Reply(result=answer(request.job, execute).model_dump(mode="json"))
    return _on_gpu(request.job, request.gpu, execute)


def _on_gpu(job: Job, gpu: int, execute: Execute) -> Reply:
    import torch

    if torch.cuda.is_available():
        torch.cuda.set_device(gpu)
    result = answer(job, execute)
    is_spent = cuda_failures.is_spent()
    if result.verdict is Verdict.ERROR and is_spent:
        # The context failed at an unexpected place, for example in an oracle that first waited for
        # the device.
        finding = Finding(
            oracle="crash",
            message=f"{job.case.id}: {result.reason}",
            cause=Code.DEVICE,
            at=result.at,
        )
        result = result.but(verdict=Verdict.CRASH, findings=(finding,))
    is_short = result.cause == Code.NO_MEMORY
    # The allocator keeps the blocks of a case that ended early, and the next case may not fit.
    if (result.verdict in (Verdict.CRASH, Verdict.ERROR) or is_short) and not is_spent:
        cuda_failures.free_memory()
    return Reply(result=result.model_dump(mode="json"), is_spent=is_spent)


def _warm_up(gpu: int) -> None:
    """Load what a spare's first case on this GPU needs. The spare is of use without it."""
    import torch

    engines = [engine for engine in ENGINES if importlib.util.find_spec(engine.package) is not None]
    for module in ("triton", *(module for engine in engines for module in engine.slow_modules)):
        with contextlib.suppress(Exception):
            importlib.import_module(module)
    # The product creates the CUDA context and loads cuBLAS. Torch without CUDA raises
    # AssertionError.
    with contextlib.suppress(RuntimeError, AssertionError):
        torch.ones(1, 1, device=f"cuda:{gpu}").matmul(torch.ones(1, 1, device=f"cuda:{gpu}")).item()


def main(parent: Parent) -> None:
    """Describe this machine, then answer requests until there are no more."""
    import torch

    # One worker for each core: more threads would compete for them.
    torch.set_num_threads(1)
    execute = attribute_at(sys.argv[1])
    if sys.argv[2:]:
        _warm_up(int(sys.argv[2]))
    parent.reply(Reply(ready=describe_machine().model_dump(mode="json")))
    for request in parent.requests(WorkerRequest):
        reply = reply_to(request, execute)
        if threads.any_computes():
            reply = reply.but(is_spent=True)
        parent.reply(reply)
        if reply.is_spent:
            return


if __name__ == "__main__":
    run_child(main)
