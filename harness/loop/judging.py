"""Verdicts of kernels as a library.

    from mla_harness import judge

    verdict = judge("attempt.py:decode", op="mla_decode", seconds=5.0)

The kernel runs in a cell (:mod:`harness.cell`), the judge in this process. The server of cells, the
scenarios and the cases stay from one verdict to the next, so a verdict takes what its calls take.
"""

from __future__ import annotations

import atexit
import inspect
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from harness.core.cases import Case, CellOf, Job
from harness.core.errors import InputError
from harness.core.kernels import KernelSpec
from harness.core.ops import OPS
from harness.core.records import BAD, FAILED, CaseResult, Verdict
from harness.diagnose.run_jobs import MOST_CAUSES, MOST_FAILURES, kind_of
from harness.memory.triton_interpreter import time_limit
from harness.run.cell_server import CellServer
from harness.scenario.calls_alone import calls_alone
from harness.store.coverage import coverages

NAME = "judged"
"""The short name of a kernel while it is judged, so that its cases are those of the one before."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a kernel is not right: what the most telling oracle found, and the call that shows it."""

    oracle: str
    cause: str
    message: str
    case: str
    params: Mapping[str, Any]
    """The parameters of the smallest call that failed so."""


@dataclass(frozen=True, slots=True)
class KernelVerdict:
    """What the calls of a kernel came to.

    `verdict` is pass, fail, crash, or skip if it refused all of them. `covered` says in a sentence
    which pairs of conditions the calls showed. `is_complete` is false if the time was over first,
    or if more failures would have said nothing new.
    """

    verdict: str
    causes: tuple[Cause, ...]
    covered: str
    num_judged: int
    num_skipped: int
    skipped: Mapping[str, int]
    """Why cases were skipped -> how many."""
    is_complete: bool
    seconds: float
    seed: int

    @property
    def is_right(self) -> bool:
        """Whether every call that was made is right, and there was one."""
        return self.verdict == Verdict.PASS.value

    def json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


class Judge:
    """Judges kernels, and keeps what several verdicts need. Close it to end its processes."""

    def __init__(
        self, *, device: str = "cpu", seed: int | None = None, call_seconds: float = 60.0
    ) -> None:
        """Start the server of cells. Without a `seed`, the inputs are drawn by one of its own.

        A call of a kernel may take `call_seconds`, and ten times as much under Triton's
        interpreter.
        """
        self._device = device
        self._call_seconds = time_limit(call_seconds)
        # One for all verdicts, as cases are drawn once. Each kernel has a new process, and no seed.
        self._seed = seed if seed is not None else 1 + secrets.randbelow(2**31 - 1)
        self._server = CellServer()
        self._cases: dict[tuple[Any, ...], list[Case]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the server and its cells."""
        self._server.close()

    def judge(
        self,
        kernel: Callable[..., Any] | str | Path,
        op: str,
        *,
        seconds: float | None = None,
        **promises: Any,
    ) -> KernelVerdict:
        """Judge a function of a file, or `FILE:NAME`, as a kernel of `op`.

        `seconds` ends the verdict early: the most telling calls come first. `promises` are those of
        `@kernel`, such as `shapes="deepseek"`. Raises InputError for a function without a file, a
        file that does not import, and a signature that the op does not have.
        """
        # Torch is imported with the first verdict.
        from harness.cell.client import load_in_cell, unload
        from harness.judge.run_case import run_case

        started = time.monotonic()
        path, name = _place(kernel)
        OPS.get(op)
        self._server.wait_until_ready()
        given = {key: list(one) if isinstance(one, tuple) else one for key, one in promises.items()}
        words = {"op": op, "name": NAME, **given}
        where = CellOf(
            server=self._server.path,
            device=self._device,
            name=name,
            words=words,
            seconds=self._call_seconds,
        )
        results: list[CaseResult] = []
        jobs: dict[str, Job] = {}
        causes: dict[tuple[str, str, str], list[tuple[CaseResult, Case]]] = {}
        is_complete = True
        try:
            (spec,) = load_in_cell(where, path)
            for case in self._cases_of(spec):
                job = Job(key=case.id, case=case, plugins=(path,), cell=where)
                result = run_case(job)
                results.append(result)
                jobs[job.key] = job
                if result.verdict is Verdict.ERROR:
                    raise InputError(f"{path}: {result.reason}")
                # The first is the most telling one. The others of a call mostly follow from it.
                for finding in result.findings[:1]:
                    causes.setdefault(kind_of(finding), []).append((result, case))
                # A kernel that hung once would take its limit for each further call.
                is_late = result.has_hung or (
                    seconds is not None and time.monotonic() - started > seconds
                )
                num_failed = sum(one.verdict in FAILED for one in results)
                if is_late or len(causes) == MOST_CAUSES or num_failed == MOST_FAILURES:
                    is_complete = False
                    break
            covered = "; ".join(
                one.statement for one in coverages(results, jobs) if one.kernel == spec.name
            )
        finally:
            unload(where, path)
        return _verdict(
            results, causes, covered, is_complete, time.monotonic() - started, self._seed
        )

    def _cases_of(self, spec: KernelSpec) -> list[Case]:
        key = (spec.op, spec.kv, spec.shapes, spec.takes, spec.gives_lse, spec.checks)
        if key not in self._cases:
            self._cases[key] = calls_alone([spec.name], seed=self._seed)
        return self._cases[key]


def _place(kernel: Callable[..., Any] | str | Path) -> tuple[str, str]:
    """The file of a kernel, and its name there."""
    if isinstance(kernel, str | Path):
        file, _, name = str(kernel).rpartition(":")
        if not file:
            raise InputError(f"{kernel}: write FILE:NAME, the file and the function")
        return str(Path(file).resolve()), name
    file_of = inspect.getsourcefile(kernel)
    name = getattr(kernel, "__qualname__", "")
    if file_of is None or not Path(file_of).is_file() or "<locals>" in name or not name:
        raise InputError(
            f"{name or kernel}: a function at the top of a file can be judged, as its process"
            " executes the file; write it to one"
        )
    return str(Path(file_of).resolve()), name


def _verdict(
    results: list[CaseResult],
    causes: Mapping[tuple[str, str, str], list[tuple[CaseResult, Case]]],
    covered: str,
    is_complete: bool,
    seconds: float,
    seed: int,
) -> KernelVerdict:
    found = {result.verdict for result in results}
    worst = next(
        (verdict for verdict in (Verdict.CRASH, Verdict.FAIL, Verdict.PASS) if verdict in found),
        Verdict.SKIP,
    )
    assert not found & set(BAD) or worst in FAILED
    skipped: dict[str, int] = {}
    for result in results:
        if result.verdict is Verdict.SKIP:
            skipped[result.reason] = skipped.get(result.reason, 0) + 1
    return KernelVerdict(
        verdict=worst.value,
        causes=tuple(_cause(pairs) for pairs in causes.values()),
        covered=covered,
        num_judged=sum(result.verdict is not Verdict.SKIP for result in results),
        num_skipped=sum(skipped.values()),
        skipped=skipped,
        is_complete=is_complete,
        seconds=round(seconds, 3),
        seed=seed,
    )


def _cause(pairs: list[tuple[CaseResult, Case]]) -> Cause:
    # The shortest parameters stand for the smallest call.
    result, case = min(pairs, key=lambda pair: len(pair[1].params.model_dump_json()))
    finding = result.findings[0]
    return Cause(finding.oracle, finding.cause, finding.message, case.id, case.values())


_default: Judge | None = None


def judge_kernel(
    kernel: Callable[..., Any] | str | Path,
    op: str,
    *,
    seconds: float | None = None,
    **promises: Any,
) -> KernelVerdict:
    """Judge a kernel on a CPU with a judge that this process keeps: see :meth:`Judge.judge`.

    Users import it as `mla_harness.judge`.
    """
    global _default
    if _default is None:
        _default = Judge()
        atexit.register(_default.close)
    return _default.judge(kernel, op, seconds=seconds, **promises)
