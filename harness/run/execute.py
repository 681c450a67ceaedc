"""One case from top to bottom, inside a worker: skip check, target, fault, poison, runs, oracles, verdict."""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from harness.catalog import FAULTS, ORACLES
from harness.kernels.plugins import find_kernel, load_plugins
from harness.oracles.base import most_telling_first
from harness.oracles.crash import CRASHES
from harness.poison.patterns import Poison
from harness.records import Case, CaseResult, Finding, Job, Verdict
from harness.scenario.matrix import kernel_fields
from harness.targets.base import Evidence, Run, Target
from harness.targets.engine import EngineTarget
from harness.targets.kernel import KernelTarget

LOG_TAIL = 4000


@dataclass(slots=True)
class Outcome:
    """The part of a result that executing a case finds out."""

    verdict: Verdict
    reason: str = ""
    findings: list[Finding] = field(default_factory=list)
    looked_at: dict[str, int] = field(default_factory=dict)
    log: str = ""


def execute(job: Job) -> CaseResult:
    """Execute one job and judge it. Never raises an Exception: the harness's own failure is verdict `error`."""
    started = time.perf_counter()
    try:
        outcome = _outcome(job)
    except Exception as error:
        reason = f"{type(error).__name__}: {_first_line(str(error))}"
        outcome = Outcome(Verdict.ERROR, reason, log=traceback.format_exc()[-LOG_TAIL:])
    return CaseResult(
        key=job.key,
        id=job.case.id,
        scenario=job.case.scenario,
        refs=job.case.refs,
        fault=job.fault,
        sites=job.sites,
        verdict=outcome.verdict,
        seconds=time.perf_counter() - started,
        reason=outcome.reason,
        findings=tuple(outcome.findings),
        looked_at=outcome.looked_at,
        log=outcome.log,
    )


def _outcome(job: Job) -> Outcome:
    load_plugins(job.plugins)
    reason = why_not(job.case, job.device)
    if reason:
        return Outcome(Verdict.SKIP, reason)
    torch.manual_seed(job.case.seed)
    with _fault(job.fault):
        evidence = Evidence(job.case, list(_runs(job)))
    return judge(evidence)


def why_not(case: Case, device: str) -> str:
    """Why this machine or a kernel of the case cannot run it, in a sentence; empty when it can run."""
    if device == "cuda" and not torch.cuda.is_available():
        return "no CUDA device on this machine"
    kv = case.params.get("kv")
    for parameter, op in kernel_fields(case.system, case.params.get("op")).items():
        spec = find_kernel(op, case.params[parameter])
        if reason := spec.why_not(device):
            return reason
        if kv is not None and kv not in spec.kv:
            return f"{spec.name} reads a cache of {', '.join(spec.kv)}, not of {kv}"
    return (EngineTarget.supports(case) or "") if case.system == "engine" else ""


def judge(evidence: Evidence) -> Outcome:
    """Ask the oracles of the case in order. After a crash only `crash` is asked: nothing is whole to be judged."""
    crash = ORACLES.get("crash").judge(evidence)
    if crash.findings:
        return Outcome(Verdict.CRASH, crash.findings[0].message, crash.findings, {"crash": crash.looked_at})
    outcome = Outcome(Verdict.PASS)
    blind: list[str] = []
    for name in dict.fromkeys((*evidence.case.oracles, "crash")):
        judgement = crash if name == "crash" else ORACLES.get(name).judge(evidence)
        outcome.findings.extend(judgement.findings)
        outcome.looked_at[name] = judgement.looked_at
        if judgement.looked_at == 0:
            blind.append(name)
    if blind:
        outcome.verdict = Verdict.ERROR
        outcome.reason = f"nothing was looked at by {', '.join(blind)}; an oracle that sees nothing proves nothing"
    if outcome.findings:
        outcome.findings = most_telling_first(outcome.findings)
        outcome.verdict = Verdict.FAIL
        outcome.reason = outcome.findings[0].message
    return outcome


def _runs(job: Job) -> Iterator[Run]:
    """One run for each poison pattern, the main one first. A run that crashed is the last one."""
    target = _target(job.case, job.device)
    plan = job.case.poison
    sites = frozenset(plan.sites if job.sites is None else job.sites)
    for pattern in plan.patterns:
        try:
            run = target.run(Poison(pattern, sites, strict=plan.strict, seed=job.case.seed))
        except CRASHES as error:
            run = Run(pattern, error=error)
        yield run
        if run.error is not None:
            return


def _target(case: Case, device: str) -> Target:
    if case.system == "kernel":
        return KernelTarget(case, device)
    return EngineTarget(case)


@contextlib.contextmanager
def _fault(name: str | None) -> Iterator[None]:
    if name is None:
        yield
        return
    with FAULTS.get(name).applied():
        yield


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
