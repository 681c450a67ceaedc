"""One case from top to bottom, inside a worker: skip check, target, fault, poison, runs, oracles, verdict."""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from harness.core.catalog import FAULTS, ORACLES
from harness.core.cuda_failures import in_one_line, is_device_failure
from harness.core.errors import KernelError
from harness.core.oracle_spec import most_telling_first
from harness.core.records import AccuracyRecord, Case, CaseResult, Finding, Job, PoisonPlan, Verdict
from harness.core.seams import Injection, inject
from harness.engines.vllm.host_target import VllmHostTarget
from harness.engines.vllm.target import VllmTarget
from harness.judge.oracles.crash import CRASHES
from harness.judge.run_records import Evidence, Run, Target
from harness.judge.targets.accuracy import AccuracyTarget
from harness.judge.targets.engine import EngineTarget
from harness.judge.targets.kernel import KernelTarget
from harness.kernels.plugins import find_kernel, load_plugins
from harness.memory.bounds import bad_index
from harness.memory.poison.patterns import Poison
from harness.scenario.matrix import VLLM, kernel_fields

LOG_TAIL = 4000


@dataclass(slots=True)
class Outcome:
    """The part of a result that executing a case finds out."""

    verdict: Verdict
    reason: str = ""
    findings: list[Finding] = field(default_factory=list)
    looked_at: dict[str, int] = field(default_factory=dict)
    accuracy: AccuracyRecord | None = None
    log: str = ""


def execute(job: Job) -> CaseResult:
    """Execute one job and judge it. Never raises an Exception: the harness's own failure is verdict `error`."""
    if job.first_nan is not None:
        from harness.judge.first_nan import execute as record

        return record(job)
    started = time.perf_counter()
    try:
        outcome = _outcome(job)
    except Exception as error:
        reason = f"{type(error).__name__}: {_first_line(str(error))}"
        outcome = Outcome(Verdict.ERROR, reason, log=traceback.format_exc()[-LOG_TAIL:])
    return CaseResult.of(
        job,
        outcome.verdict,
        seconds=time.perf_counter() - started,
        reason=outcome.reason,
        findings=tuple(outcome.findings),
        looked_at=outcome.looked_at,
        accuracy=outcome.accuracy and outcome.accuracy.model_copy(update={"fault": job.fault}),
        log=outcome.log,
    )


def _outcome(job: Job) -> Outcome:
    load_plugins(job.plugins)
    reason = why_not(job.case, job.device, job.fault)
    if reason:
        return Outcome(Verdict.SKIP, reason)
    torch.manual_seed(job.case.seed)
    # A fault of vLLM's is put back in the process that imports it.
    with _fault(None if job.case.system in VLLM else job.fault) as fault:
        evidence = Evidence(job.case, list(_runs(job)))
        if job.device != "cpu" and job.case.system in ("kernel", "engine"):
            evidence.repeat = lambda: next(_runs(job))
        outcome = judge(evidence)
    if outcome.verdict is Verdict.PASS and fault is not None and not fault.was_reached:
        return _unreached(job)
    if outcome.verdict is Verdict.CRASH and job.device == "cuda":
        # A device's error is read far from its case: in a log of the driver, beside those of other processes.
        outcome.findings = [
            finding.model_copy(update={"message": f"{job.case.id}: {finding.message.removeprefix(f'{job.case.id}: ')}"})
            for finding in outcome.findings
        ]
        outcome.reason = outcome.findings[0].message
    if outcome.verdict is not Verdict.PASS:
        outcome.log = next((run.log for run in evidence.runs if run.log), "")
    return outcome


def _unreached(job: Job) -> Outcome:
    """What to say of a fault whose code no run came to: nothing was shown, neither that it is caught nor missed."""
    if job.device == "cuda" and job.case.system == "engine":
        names = ", ".join(
            f"{op}/{job.case.params[parameter]}" for parameter, op in kernel_fields(job.case.system, None).items()
        )
        return Outcome(Verdict.SKIP, f"the code of {job.fault} is not run on CUDA, where this case has {names}")
    return Outcome(Verdict.PASS, f"no run came to the code of {job.fault}")


def why_not(case: Case, device: str, fault: str | None = None) -> str:
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
        if case.system == "kernel" and case.params.get("window") is not None and not spec.windowed:
            return f"{spec.name} has no argument `window`"
    if case.system == "engine":
        if device == "cuda" and (case.params["quantize"], case.params["graph"]) == ("mxfp8", "full"):
            return "quantize_blocks/torch reads its offsets on the host, which a captured CUDA graph cannot"
        return EngineTarget.supports(case) or ""
    if case.system == "vllm":
        return VllmTarget.supports(case, fault) or ""
    if case.system == "vllm-host":
        return VllmHostTarget.supports(fault) or ""
    return (AccuracyTarget.supports(case) or "") if case.system == "accuracy" else ""


def judge(evidence: Evidence) -> Outcome:
    """Ask the oracles of the case in order. After a crash only `crash` is asked: nothing is whole to be judged."""
    crash = ORACLES.get("crash").judge(evidence)
    if crash.findings:
        return Outcome(Verdict.CRASH, crash.findings[0].message, crash.findings, {"crash": crash.looked_at})
    outcome = Outcome(Verdict.PASS)
    blind: list[str] = []
    notes: list[str] = []
    for name in dict.fromkeys((*evidence.case.oracles, "crash")):
        judgement = crash if name == "crash" else ORACLES.get(name).judge(evidence)
        outcome.findings.extend(judgement.findings)
        outcome.looked_at[name] = judgement.looked_at
        outcome.accuracy = judgement.accuracy or outcome.accuracy
        notes.extend(judgement.notes)
        if judgement.looked_at == 0:
            blind.append(name)
    outcome.reason = "; ".join(notes)
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
    target = _target(job)
    plan = job.case.poison
    sites = frozenset(plan.sites if job.sites is None else job.sites)
    for pattern in plan.patterns:
        try:
            run = target.run(poison_of(plan, pattern, sites, job.case.seed))
        except CRASHES as error:
            # What a check had found before says more than the fault that it led to.
            run = Run(pattern, error=bad_index() or error)
        except RuntimeError as error:
            if not is_device_failure(error):
                raise
            run = Run(pattern, error=bad_index() or KernelError(f"{job.case.id}: {in_one_line(error)}"))
        yield run
        if run.error is not None:
            return


def poison_of(plan: PoisonPlan, pattern: str, sites: frozenset[str], seed: int) -> Poison:
    """What one run of a case fills."""
    return Poison(pattern, sites, strict=plan.strict, seed=seed, ignore_contracts=plan.ignore_contracts)


def _target(job: Job) -> Target:
    if job.case.system == "kernel":
        return KernelTarget(job.case, job.device)
    if job.case.system == "accuracy":
        return AccuracyTarget(job.case, job.directory, job.device)
    if job.case.system == "vllm":
        return VllmTarget(job.case, job.fault, job.directory, job.gpus)
    if job.case.system == "vllm-host":
        return VllmHostTarget(job.case, job.fault)
    return EngineTarget(job.case, job.device)


@contextlib.contextmanager
def _fault(name: str | None) -> Iterator[Injection | None]:
    if name is None:
        yield None
        return
    with inject(FAULTS.get(name)) as injection:
        yield injection


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
