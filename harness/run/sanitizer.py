"""Cases under NVIDIA's compute-sanitizer, which watches child processes, `harness.judge.run_case`.

The sanitizer sees single loads and stores, and makes a case ten times slower or more. A child runs
a batch of cases, since most of its time goes into its start. If the report of a batch counts
errors, or its child died, each of its cases runs once more in a child of its own, and the report of
that child goes to the result of the case.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import tempfile
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from harness.core.cases import Job, JobBatch
from harness.core.cause_codes import Code
from harness.core.errors import InputError
from harness.core.findings import Finding
from harness.core.records import CaseResult, Verdict
from harness.run.child import Child, ChildDied
from harness.run.children import Children, as_they_end
from harness.run.runner import WorkerPool

TOOLS = ("initcheck", "memcheck", "racecheck", "synccheck")
BATCH = 20
"""Cases of one child at most. Its start under the sanitizer takes as long as some ten cases."""
ORACLE = "sanitizer"
LOG_TAIL = 6000
SLOWDOWN = 30.0
# Where the CUDA toolkit puts it, which is often not on PATH.
_PLACES = ("/usr/local/cuda/bin/compute-sanitizer", "/opt/cuda/bin/compute-sanitizer")
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)")


def find() -> str | None:
    """The path of compute-sanitizer, or None."""
    found = shutil.which("compute-sanitizer")
    return found or next((place for place in _PLACES if os.access(place, os.X_OK)), None)


def check(tool: str, jobs: list[Job]) -> None:
    """Raise InputError unless `tool` exists and is installed, and all `jobs` are on CUDA."""
    if tool not in TOOLS:
        raise InputError(f"--sanitizer {tool}: unknown tool; choose one of {', '.join(TOOLS)}")
    if on_cpu := next((job.case.id for job in jobs if job.device != "cuda"), ""):
        raise InputError(
            f"--sanitizer: watches kernels on a GPU, and {on_cpu} runs on the CPU; add --device"
            " cuda"
        )
    if find() is None:
        raise InputError(
            "--sanitizer: compute-sanitizer is not installed; it comes with the CUDA toolkit"
        )


def run(jobs: Sequence[Job], tool: str, children: Children) -> list[CaseResult]:
    """Execute `jobs` in one child under compute-sanitizer; all or none of them capture a graph.

    The report becomes the log of a case, its errors become a finding. `children` may end the child.
    Raises ChildrenEndedError if they were ended before it began.
    """
    program = find()
    assert program is not None
    # Memory that the allocator reuses counts as written. But a graph needs its pool.
    environ = {} if jobs[0].case.params.has_graph else {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    # Memcheck by itself counts calls of the CUDA API that fail. Triton and FlashInfer make some on
    # purpose.
    options = ("--report-api-errors", "no") if tool == "memcheck" else ()
    with tempfile.TemporaryDirectory(prefix="mla-harness-sanitizer-") as folder:
        report = Path(folder) / "report.txt"
        prefix = (
            program,
            "--tool",
            tool,
            "--log-file",
            str(report),
            "--print-limit",
            "20",
            *options,
        )
        start = functools.partial(
            Child, "harness.judge.run_case", name="the process", prefix=prefix, environ=environ
        )
        with children.running(start) as child:
            child.send(JobBatch(jobs=tuple(_watched(job, tool) for job in jobs)))
            results = [_result(job, child) for job in jobs]
            # compute-sanitizer ends its report when the watched process is gone.
            child.wait(SLOWDOWN * jobs[0].timeout_seconds)
        text = report.read_text(encoding="utf-8", errors="replace") if report.exists() else ""
    return [with_report(result, tool, text) for result in results]


def _result(job: Job, child: Child) -> CaseResult:
    """The next reply of the watched process, or its crash."""
    child.allow(SLOWDOWN * job.timeout_seconds)
    with contextlib.suppress(ChildDied):
        if (found := child.receive().result) is not None:
            return CaseResult.model_validate(found)
    death = child.death()
    # The exit code is that of compute-sanitizer, not of the watched process.
    ended = "it ran out of time" if death.code is None else f"it ended with code {death.code}"
    reason = f"no answer from the process under compute-sanitizer: {ended}"
    finding = Finding(oracle="crash", message=f"{job.case.id}: {reason}", **death.as_cause)
    return CaseResult.of(job, Verdict.CRASH, reason=reason, findings=(finding,))


def _watched(job: Job, tool: str) -> Job:
    """The job as `tool` can watch it: without poison for initcheck, to which poisoned memory is
    written memory.
    """
    if tool != "initcheck":
        return job
    case = job.case
    oracles = tuple(name for name in case.oracles if name != "non_interference")
    return job.but(
        case=case.but(poison=case.poison.but(patterns=("natural",), sites=()), oracles=oracles)
    )


def with_report(result: CaseResult, tool: str, text: str) -> CaseResult:
    """`result` with the end of the sanitizer's report as its log, and with a finding if the report
    counts errors.
    """
    summary = _SUMMARY.search(text)
    changes: dict[str, object] = {"log": text[-LOG_TAIL:]}
    if summary and (count := int(summary[1])):
        first = next(
            # The first line is the banner of the program, and each line begins with equals signs.
            (line.lstrip("= ").strip() for line in text.splitlines()[1:] if line.strip("= \t")),
            "",
        )
        message = f"compute-sanitizer {tool} reports {count} errors, first: {first}"
        changes["findings"] = (
            *result.findings,
            Finding(oracle=ORACLE, message=message, cause=Code.SANITIZER),
        )
        if result.verdict in (Verdict.PASS, Verdict.SKIP):
            changes |= {"verdict": Verdict.FAIL, "reason": message}
    # Without a summary nothing was watched to the end, so a pass proves nothing.
    elif not summary and result.verdict is Verdict.PASS:
        changes |= {"verdict": Verdict.ERROR, "reason": f"compute-sanitizer {tool} left no summary"}
    return result.but(**changes)


class SanitizedPool(WorkerPool):
    """Runs cases under the sanitizer, `watchers` children at a time, but trials of the search for
    blame without it.
    """

    def __init__(self, tool: str, watchers: int = 1) -> None:
        super().__init__(1)
        self.tool = tool
        self._watchers = watchers
        self._children = Children()

    def close(self) -> None:
        self._children.end()
        super().close()

    def _run(
        self, waiting: deque[Job], on_start: Callable[[Job], None] | None
    ) -> Generator[CaseResult]:
        jobs = list(waiting)
        waiting.clear()
        # Trials of blame ask which memory matters, and the sanitizer would only slow them down.
        yield from super()._run(deque(job for job in jobs if job.sites is not None), on_start)
        watched = [job for job in jobs if job.sites is None]
        # A batch pays for one start of the sanitizer, which takes longer than a case.
        size = max(1, min(BATCH, len(watched) // self._watchers))
        kinds: defaultdict[tuple[object, ...], list[Job]] = defaultdict(list)
        for job in watched:
            # A process imports the plug-ins of one case only.
            kinds[job.case.params.has_graph, job.foreign_code].append(job)
        batches = [
            kind[start : start + size]
            for kind in kinds.values()
            for start in range(0, len(kind), size)
        ]
        executor = ThreadPoolExecutor(self._watchers)
        self._children = children = Children()
        try:
            watches = [executor.submit(self._watch, batch, children) for batch in batches]
            for done in as_they_end(watches):
                yield from done.result()
        finally:
            # After an early stop no child may begin, and those that run are ended.
            executor.shutdown(wait=False, cancel_futures=True)
            children.end()

    def _watch(self, batch: list[Job], children: Children) -> list[CaseResult]:
        """The results of a batch; of each case by itself, if something is wrong."""
        results = run(batch, self.tool, children)
        is_reported = any(
            finding.cause == Code.SANITIZER for one in results for finding in one.findings
        )
        if len(batch) == 1 or not (
            is_reported or any(one.verdict is Verdict.CRASH for one in results)
        ):
            return results
        return [
            one
            for job in batch
            if not children.are_ended
            for one in run([job], self.tool, children)
        ]
