"""The child process that runs cases: `python -m harness.run.worker`. It reads jobs, answers results, and may die.

Kernels print to standard output, scribble on standard error and call `os._exit`; so the first thing done here is to
move the protocol to descriptors of its own and to let everything else that is printed end in the worker's log.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from harness.core import cuda_failures
from harness.core.cases import Job
from harness.core.errors import HarnessError
from harness.core.records import CaseResult, Finding, Verdict
from harness.run.environment import DEVICES, describe_machine
from harness.run.protocol import DEFAULT_EXECUTE, Reply, decode_request, encode

PR_SET_PDEATHSIG = 1
Execute = Callable[[Job], CaseResult]


def take_protocol_descriptors() -> tuple[BinaryIO, BinaryIO]:
    """Move jobs and replies away from descriptors 0 and 1; what is printed there goes to standard error."""
    jobs = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb", buffering=0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return jobs, replies


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent dies; elsewhere the end of the job stream must do."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if parent and os.getppid() != parent:
            os._exit(0)


def load_execute(name: str) -> Execute:
    """Import the "module:function" that executes a job."""
    module, _, attribute = name.partition(":")
    execute: Execute = getattr(importlib.import_module(module), attribute)
    return execute


def answer(job: Job, execute: Execute) -> CaseResult:
    """Execute one job. What `execute` did not foresee is our error; an exit that a kernel asked for is a crash."""
    try:
        return execute(job)
    except Exception as error:
        return _unexpected(job, Verdict.ERROR, f"{type(error).__name__}: {error}", ())
    except BaseException as error:
        sentence = f"the kernel raised {type(error).__name__}({error})"
        return _unexpected(job, Verdict.CRASH, sentence, (Finding(oracle="crash", message=sentence),))


def _unexpected(job: Job, verdict: Verdict, reason: str, findings: tuple[Finding, ...]) -> CaseResult:
    return CaseResult.of(job, verdict, reason=reason, findings=findings, log=traceback.format_exc()[-4000:])


def describe_kernels(plugins: tuple[str, ...]) -> Reply:
    """What kernels declare, and where they can run; of plug-in files, or all. A file that does not load is refused."""
    from dataclasses import fields

    from harness.core.catalog import KERNELS
    from harness.kernels.plugins import load_entry_points, load_plugins

    try:
        if not plugins:
            load_entry_points()
        specs = load_plugins(plugins) if plugins else tuple(KERNELS)
        described: list[dict[str, Any]] = []
        for spec in specs:
            declared = {field.name: getattr(spec, field.name) for field in fields(spec) if field.name != "impl"}
            described.append(declared | {"why_not": {device: spec.why_not(device) or "" for device in DEVICES}})
    except HarnessError as error:
        return Reply(refused=str(error))
    return Reply(described=described)


def reply_to(line: bytes, execute: Execute) -> Reply:
    """Do what one line asks."""
    request = decode_request(line)
    if request.describe is not None:
        return describe_kernels(request.describe)
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
        # The context failed where nobody expected it, such as in an oracle that was the first to wait for the device.
        finding = Finding(oracle="crash", message=f"{job.case.id}: {result.reason}")
        result = result.model_copy(update={"verdict": Verdict.CRASH, "findings": (finding,)})
    if result.verdict is Verdict.CRASH and not is_spent:
        cuda_failures.free_memory()
    return Reply(result=result.model_dump(mode="json"), is_spent=is_spent)


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    while line := stream.readline():
        yield line


def main() -> None:
    """Start up, say that we are ready and what this machine is, then answer until the jobs end."""
    parser = argparse.ArgumentParser(prog="python -m harness.run.worker")
    parser.add_argument("--execute", default=DEFAULT_EXECUTE)
    parser.add_argument("--parent", type=int, default=0)
    options = parser.parse_args()
    die_with_parent(options.parent)
    jobs, replies = take_protocol_descriptors()
    faulthandler.enable(all_threads=True)
    # The parent sends this before it kills a hanging worker, so that the log shows where it hung.
    faulthandler.register(signal.SIGUSR1, all_threads=True, chain=False)

    import torch

    torch.set_num_threads(1)
    execute = load_execute(options.execute)
    replies.write(encode(Reply(ready=describe_machine().model_dump(mode="json"))))
    for line in _lines(jobs):
        reply = reply_to(line, execute)
        payload = encode(reply)
        sys.stdout.flush()
        sys.stderr.flush()
        _write_all(replies, payload)
        if reply.is_spent:
            break
    # Threads that a kernel left behind must not keep the process alive.
    os._exit(0)


def _write_all(stream: BinaryIO, payload: bytes) -> None:
    view = memoryview(payload)
    while view:
        view = view[stream.write(view) :]


if __name__ == "__main__":
    main()
