"""A stand-in for `harness.judge.run_case`.

Its cases do what their tags say; imported in the worker only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

from harness.core import cuda_failures
from harness.core.cases import Job
from harness.core.errors import NoRoomError
from harness.core.files import write_atomic
from harness.core.findings import Finding
from harness.core.records import CaseResult, Verdict


def _result(job: Job, verdict: Verdict = Verdict.PASS, **more: object) -> CaseResult:
    case = job.case
    fields = {
        "key": job.key,
        "id": case.id,
        "scenario": case.scenario,
        "refs": case.refs,
        "fault": job.fault,
    }
    return CaseResult.model_validate({**fields, "verdict": verdict, **more})


def execute(job: Job) -> CaseResult:
    """Behave as the tags say, such as `does=exit` or `seconds=0.2`."""
    options = dict(tag.split("=", maxsplit=1) for tag in job.case.tags)
    does = options.get("does", "pass")
    time.sleep(float(options.get("seconds", 0.0)))
    if "started" in options:
        with Path(options["started"]).open("a") as stream:
            stream.write(job.case.id + "\n")
    if "until" in options:
        while not Path(options["until"]).exists():
            time.sleep(0.05)
    if does == "exit":
        os._exit(7)
    if does == "segfault":
        ctypes.string_at(0)
    if does == "hang":
        time.sleep(3600)
    if does == "fork_and_hang":
        if os.fork() == 0:
            time.sleep(3600)
        write_atomic(Path(options["pid_file"]), str(os.getpid()))
        time.sleep(3600)
    if does == "raise":
        raise ValueError("planned by the stub")
    if does == "spend":
        # CUDA failed for good in the call.
        cuda_failures.is_spent = lambda: True
        print("the stub prints", flush=True)
        return _result(
            job, Verdict.FAIL, findings=(Finding(oracle="finite", message="planned by the stub"),)
        )
    if does == "full":
        raise NoRoomError("run.pt: File too large; make room")
    if does == "sys_exit":
        sys.exit(5)
    if does == "print":
        print("noise on stdout " * 1000, flush=True)
        os.write(1, b'{"result": null}\n')
        print("noise on stderr", file=sys.stderr)
    if does == "surrogate":
        return _result(
            job, Verdict.FAIL, findings=(Finding(oracle="finite", message="lone \udc80 surrogate"),)
        )
    if does == "garble":
        for descriptor in range(3, 256):
            try:
                os.write(descriptor, b"garbage\n")
            except OSError:
                continue
        time.sleep(3600)
    if does == "wrong_key":
        return _result(job).model_copy(update={"key": "another"})
    if does == "fail":
        finding = Finding(
            oracle="finite",
            site="output",
            tensor="out",
            where="row 1",
            bits="0x7fc00001",
            message="NaN",
        )
        return _result(job, Verdict.FAIL, findings=(finding,))
    if does == "error":
        return _result(job, Verdict.ERROR, reason="an oracle looked at nothing")
    if does == "crash":
        reason = options.get("reason", "raised RuntimeError: bad address 0xabc1 of block 17")
        kernel, cause = options.get("kernel", ""), options.get("cause", "raised")
        finding = Finding(oracle="crash", message=reason, cause=cause, kernel=kernel)
        return _result(job, Verdict.CRASH, reason=reason, findings=(finding,))
    if does == "skip":
        return _result(job, Verdict.SKIP, reason="this machine has no GPU")
    if does == "end_the_node":
        # On a node of a cluster, the actor starts the process that forks this one: the end of the
        # machine takes all.
        words, stat = (
            Path(f"/proc/{os.getppid()}/{name}").read_text() for name in ("cmdline", "stat")
        )
        is_forked = "harness.run.fork_server" in words.split("\0")
        os.kill(
            int(stat.rpartition(")")[2].split()[1]) if is_forked else os.getppid(), signal.SIGKILL
        )
        time.sleep(3600)
    if does == "note":
        place = Path(job.directory or "")
        before = sorted(path.name for path in place.iterdir())
        (place / "answers").mkdir(exist_ok=True)
        (place / "answers" / f"{len(before)}.txt").write_text("noted")
        return _result(job, reason=f"{place} held {before}")
    if does == "read_plugin":
        return _result(job, reason=f"{job.plugins[0]}: {Path(job.plugins[0]).read_text()}")
    if does == "environ":
        return _result(job, reason=os.environ.get(options["variable"], "not set"))
    if does == "gpus":
        return _result(job, reason=str(job.gpus))
    if does == "pid":
        return _result(job, reason=str(os.getpid()))
    return _result(job)


def broken(job: Job) -> CaseResult:
    """Never reached: the module attribute that tests ask for is misspelt on purpose."""
    raise AssertionError
