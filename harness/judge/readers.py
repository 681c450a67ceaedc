"""A job under proposed cures, inside a worker: its verdict, or who reads the memory of some sites.

A job that names sites is a search for readers: the case runs with these sites alone filled, with one pattern after
another, and what its launches computed is compared. A job without them is judged as usual.
"""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Iterator

import torch

from harness.core.catalog import FAULTS, KERNELS
from harness.core.cure_names import filled_sites
from harness.core.errors import HarnessError
from harness.core.records import Case, CaseResult, Finding, Job, Verdict
from harness.core.seams import inject
from harness.judge.cures.apply import applied, faults_left
from harness.judge.oracles.crash import CRASHES
from harness.judge.probes.trace import Event, Trace, first_difference
from harness.judge.run_case import LOG_TAIL, why_not
from harness.judge.run_case import execute as judge_job
from harness.judge.run_records import Target
from harness.judge.targets.engine import EngineTarget
from harness.judge.targets.kernel import KernelTarget
from harness.kernels.plugins import load_plugins
from harness.memory.poison.patterns import Poison

READING = "reading"
"""The `oracle` of findings that say who read a site."""
LOOKED_AT = "compared"
FRIENDLY = "zeros"
FILLS = ("nan", "random", "max")
"""What is compared with friendly memory, one after another until somebody is found to read it."""
FINITE_FILLS = ("random", "max")
"""What a site that a cure fills might have been filled with as well: if that matters, somebody reads the fill."""
INDEX_SITES = frozenset({"block_table.pad", "router.ids", "sched_meta", "workspace"})


def execute(job: Job) -> CaseResult:
    """Execute one job under its cures and faults. Never raises an Exception."""
    started = time.perf_counter()
    try:
        load_plugins(job.plugins)
        with _changed(job):
            plain = job.model_copy(update={"fault": None, "cures": (), "more_faults": ()})
            if job.sites is None:
                filled = filled_sites(job.cures)
                left = tuple(site for site in job.case.poison.sites if site not in filled)
                result = judge_job(plain.model_copy(update={"sites": left}))
                return result.model_copy(update={"fault": job.fault, "sites": None})
            return _readings(job, started)
    except HarnessError as error:
        return _result(job, Verdict.ERROR, started, reason=str(error))
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        return _result(job, Verdict.ERROR, started, reason=reason, log=traceback.format_exc()[-LOG_TAIL:])


@contextlib.contextmanager
def _changed(job: Job) -> Iterator[None]:
    """The faults put back, and the cures around what they put there."""
    faults = tuple(dict.fromkeys((*((job.fault,) if job.fault else ()), *job.more_faults)))
    with contextlib.ExitStack() as stack:
        for name in faults_left(faults, job.cures):
            stack.enter_context(inject(FAULTS.get(name)))
        stack.enter_context(applied(job.cures))
        yield


def _readings(job: Job, started: float) -> CaseResult:
    assert job.sites is not None
    if reason := why_not(job.case, job.device):
        return _result(job, Verdict.SKIP, started, reason=reason)
    friendly, error = _friendly(job)
    if error is not None:
        # A failure that needs no poison, such as an index that is wrong by itself: nobody can be compared with it.
        return _result(job, Verdict.SKIP, started, reason=f"it does not run in friendly memory either: {error}")
    num_compared = 0
    for fill in FILLS:
        sites = frozenset(job.sites) - (frozenset() if fill in FINITE_FILLS else frozenset(filled_sites(job.cures)))
        if not sites:
            continue
        trace, error = _trace(job, Poison(fill, sites, seed=job.case.seed))
        num_compared += len(trace.events)
        event = first_difference(friendly, trace)
        if event is not None or error is not None:
            found = _finding(job.sites, event, f"{FRIENDLY} / {fill}", error)
            return _result(job, Verdict.FAIL, started, findings=[found], num_compared=num_compared)
    indices = frozenset(job.sites) & INDEX_SITES
    if indices and not _looks_up_padding(job.case):
        _, error = _trace(job, Poison("nan", indices, strict=True, seed=job.case.seed))
        if error is not None:
            found = _finding(job.sites, None, "as an index out of range", error)
            return _result(job, Verdict.FAIL, started, findings=[found], num_compared=num_compared)
    if not num_compared:
        reason = "no live tensor was compared; a comparison of nothing proves nothing"
        return _result(job, Verdict.ERROR, started, reason=reason)
    return _result(job, Verdict.PASS, started, num_compared=num_compared)


def _friendly(job: Job) -> tuple[Trace, str | None]:
    """The run with nothing poisoned. It is the same for every site, so the last one made is kept."""
    key = job.model_copy(update={"key": "", "sites": None}).model_dump_json()
    if key not in _kept:
        _kept.clear()
        _kept[key] = _trace(job, Poison(FRIENDLY, frozenset(), seed=job.case.seed))
    return _kept[key]


_kept: dict[str, tuple[Trace, str | None]] = {}


def _trace(job: Job, poison: Poison) -> tuple[Trace, str | None]:
    """What one run computed, and what ended it early, if something did."""
    torch.manual_seed(job.case.seed)
    target, reader = _target(job)
    trace = Trace()
    try:
        run = target.run(poison, probe=trace) if isinstance(target, EngineTarget) else target.run(poison)
    except CRASHES as error:
        return trace, str(error).partition("\n")[0]
    if run.error is not None:
        return trace, str(run.error).partition("\n")[0]
    trace.note_outcome(run, reader)
    return trace, None


def _target(job: Job) -> tuple[Target, str]:
    """What runs the case, and whose the last outputs are."""
    if job.case.system == "kernel":
        target = KernelTarget(job.case, job.device)
        return target, target.spec.name
    return EngineTarget(job.case, job.device), "what hands out the logits"


def _finding(sites: tuple[str, ...], event: Event | None, fills: str, error: str | None) -> Finding:
    site = sites[0] if len(sites) == 1 else None
    if event is None:
        return Finding(oracle=READING, site=site, tensor="", where="", message=error or "", bits=fills)
    step = f"step {event.step}" if event.step >= 0 else ""
    return Finding(oracle=READING, site=site, tensor=event.tensor, where=step, message=event.reader, bits=fills)


def _looks_up_padding(case: Case) -> bool:
    """Whether the decode kernel of a case is promised table entries that exist."""
    name = case.params.get("decode_kernel") or case.params.get("kernel")
    spec = f"mla_decode/{name}"
    return spec in KERNELS and KERNELS.get(spec).needs_valid_table


def _result(
    job: Job, verdict: Verdict, started: float, *, reason: str = "", findings: list[Finding] | None = None,
    num_compared: int = 0, log: str = "",
) -> CaseResult:  # fmt: skip
    return CaseResult.of(
        job, verdict, seconds=time.perf_counter() - started, reason=reason, findings=tuple(findings or ()),
        looked_at={LOOKED_AT: num_compared}, log=log,
    )  # fmt: skip
