"""One case under NVIDIA's compute-sanitizer, which watches a child process, `harness.judge.run_case`.

The sanitizer sees single loads and stores, and makes a case ten times slower or more. So it watches one case at a
time, and its report goes to the result of that case.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Generator
from pathlib import Path

from harness.core.cases import Job
from harness.core.cause_codes import Code
from harness.core.errors import InputError
from harness.core.records import CaseResult, Finding, Verdict
from harness.run.child import Child, ChildDied
from harness.run.runner import WorkerPool

TOOLS = ("initcheck", "memcheck", "racecheck")
ORACLE = "sanitizer"
LOG_TAIL = 6000
SLOWDOWN = 30.0
_PLACES = ("/usr/local/cuda/bin/compute-sanitizer", "/opt/cuda/bin/compute-sanitizer")
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)")


def find() -> str | None:
    """The path of compute-sanitizer, or None."""
    found = shutil.which("compute-sanitizer")
    return found or next((place for place in _PLACES if os.access(place, os.X_OK)), None)


def check(tool: str, jobs: list[Job]) -> None:
    """Raise InputError unless `tool` exists and is installed, and `jobs` is one case on CUDA."""
    if tool not in TOOLS:
        raise InputError(f"--sanitizer {tool}: unknown tool; choose one of {', '.join(TOOLS)}")
    if len(jobs) != 1:
        raise InputError(f"--sanitizer: watches one case, and {len(jobs)} are selected; name one by its id")
    if jobs[0].device != "cuda":
        raise InputError("--sanitizer: watches kernels on a GPU, and this case runs on the CPU; add --device cuda")
    if find() is None:
        raise InputError("--sanitizer: compute-sanitizer is not installed; it comes with the CUDA toolkit")


def run(job: Job, tool: str) -> CaseResult:
    """Execute `job` under compute-sanitizer. The report becomes the log, its errors become a finding."""
    program = find()
    assert program is not None
    # Memory that the allocator reuses counts as written. But a graph needs its pool.
    environ = {} if job.case.params.has_graph else {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    limit = SLOWDOWN * job.timeout_seconds
    with tempfile.TemporaryDirectory(prefix="mla-harness-sanitizer-") as folder:
        report = Path(folder) / "report.txt"
        prefix = (program, "--tool", tool, "--log-file", str(report), "--print-limit", "20")
        with Child("harness.judge.run_case", name="the process", prefix=prefix, environ=environ) as child:
            child.send(_watched(job, tool), limit)
            result = _result(job, child, limit)
        text = report.read_text(encoding="utf-8", errors="replace") if report.exists() else ""
    return with_report(result, tool, text)


def _result(job: Job, child: Child, limit: float) -> CaseResult:
    """The reply of the watched process, or its crash."""
    found = None
    with contextlib.suppress(ChildDied):
        found = child.receive().result
        # compute-sanitizer ends its report when the watched process is gone.
        child.wait(limit)
    if found is not None:
        return CaseResult.model_validate(found)
    death = child.death()
    ended = "it ran out of time" if death.code is None else f"it ended with code {death.code}"
    reason = f"no answer from the process under compute-sanitizer: {ended}"
    finding = Finding(oracle="crash", message=f"{job.case.id}: {reason}", **death.as_cause)
    return CaseResult.of(job, Verdict.CRASH, reason=reason, findings=(finding,))


def _watched(job: Job, tool: str) -> Job:
    """The job as `tool` can watch it: without poison for initcheck, to which poisoned memory is written memory."""
    if tool != "initcheck":
        return job
    case = job.case
    oracles = tuple(name for name in case.oracles if name != "non_interference")
    plan = case.poison.model_copy(update={"patterns": ("natural",), "sites": ()})
    return job.model_copy(update={"case": case.model_copy(update={"poison": plan, "oracles": oracles})})


def with_report(result: CaseResult, tool: str, text: str) -> CaseResult:
    """`result` with the end of the sanitizer's report as its log, and with a finding if the report counts errors."""
    match = _SUMMARY.search(text)
    count = int(match[1]) if match else 0
    changes: dict[str, object] = {"log": text[-LOG_TAIL:]}
    if count:
        first = next((line.lstrip("= ").strip() for line in text.splitlines()[1:] if line.strip("= \t")), "")
        message = f"compute-sanitizer {tool} reports {count} errors, first: {first}"
        changes["findings"] = (*result.findings, Finding(oracle=ORACLE, message=message, cause=Code.SANITIZER))
        if result.verdict is Verdict.PASS:
            changes |= {"verdict": Verdict.FAIL, "reason": message}
    elif not match and result.verdict is Verdict.PASS:
        changes |= {"verdict": Verdict.ERROR, "reason": f"compute-sanitizer {tool} left no summary"}
    return result.model_copy(update=changes)


class SanitizedPool(WorkerPool):
    """Runs cases under the sanitizer, but trials of the search for blame without it."""

    def __init__(self, tool: str) -> None:
        super().__init__(1)
        self.tool = tool

    def _run(self, waiting: deque[Job], on_start: Callable[[Job], None] | None) -> Generator[CaseResult]:
        while waiting:
            job = waiting.popleft()
            if job.sites is not None:
                yield from super()._run(deque([job]), on_start)
                continue
            if on_start is not None:
                on_start(job)
            yield run(job, self.tool)
