"""The verdict of a case: it runs under each of its patterns, and the oracles judge."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping, Sequence

import torch

from harness.core.cases import Case, Job, PoisonPlan
from harness.core.catalog import ORACLES
from harness.core.cause_codes import Code
from harness.core.cuda_failures import in_one_line, is_device_failure
from harness.core.errors import KernelError, Refused, SystemUnderTestError
from harness.core.extras import MissingPackage
from harness.core.oracles import most_telling_first
from harness.core.records import Finding, Verdict
from harness.judge.run_records import Evidence, Judgement, Outcome, Run
from harness.judge.target import Target, target_of
from harness.kernels.call import counting_launches
from harness.memory.bounds import bad_index
from harness.memory.poison.patterns import FILLED, Poison

LOG_TAIL = 4000
"""Characters of a traceback that a result keeps."""


def verdict(job: Job) -> Outcome:
    """Run the case and judge it."""
    target = target_of(job)
    evidence = Evidence(job.case, [])
    refusal = _run_all(target, job, evidence)
    if target.may_differ:
        evidence.repeat = lambda: next(_runs(target, job))
    outcome = judge(evidence)
    if refusal is not None and not outcome.findings:
        raise refusal
    outcome.runs, outcome.launched = evidence.runs, evidence.runs[0].launched
    outcome.filled, outcome.shown = evidence.runs[0].filled, evidence.runs[0].shown
    never = never_called(job.case, evidence.runs) if outcome.verdict is Verdict.PASS and job.sites is None else []
    if never:
        outcome.verdict, outcome.cause = Verdict.SKIP, Code.NEVER_CALLED
        outcome.reason = f"never called: {', '.join(never)}"
        return outcome
    if outcome.verdict is Verdict.PASS and job.sites is None and (wanted := job.case.params.must_happen):
        _note_events(outcome, wanted)
    if outcome.verdict is Verdict.CRASH and job.device == "cuda":
        # The driver's log lists errors of many processes, so the message names its case.
        outcome.findings = [finding.but(message=f"{job.case.id}: {finding.message}") for finding in outcome.findings]
        outcome.reason = outcome.findings[0].message
    if outcome.verdict is not Verdict.PASS:
        outcome.log = next((log for run in evidence.runs if (log := run.log or _stack(run.error))), "")
    return outcome


def _run_all(target: Target, job: Job, evidence: Evidence) -> Refused | MissingPackage | None:
    """Add the runs to the evidence. Returns what made the case end early, if it did: it is no reason to drop a finding.

    Raises that at once if there is no evidence yet.
    """
    try:
        for run in _runs(target, job):
            evidence.runs.append(run)
    except (Refused, MissingPackage) as refusal:
        if not evidence.runs:
            raise
        return refusal
    return next((run.refusal for run in evidence.runs if run.refusal), None)


def _note_events(outcome: Outcome, wanted: Sequence[str]) -> None:
    """Note the least that a run had of each event that must happen. Without one of them, nothing is proved."""
    counts = {event: min(run.events.get(event, 0) for run in outcome.runs) for event in wanted}
    if missing := [event for event, count in counts.items() if not count]:
        outcome.verdict, outcome.cause = Verdict.SKIP, Code.NEVER_HAPPENED
        outcome.reason = f"never happened: {', '.join(missing)}"
        return
    happened = "happened: " + ", ".join(f"{event} {count}" for event, count in counts.items())
    outcome.reason = "; ".join(filter(None, (outcome.reason, happened)))


def _stack(error: SystemUnderTestError | None) -> str:
    """The traceback of an error that a kernel's own code raised; empty for any other error."""
    if error is None or not error.at:
        return ""
    return "".join(traceback.format_exception(error.__cause__ or error))[-LOG_TAIL:]


def judge(evidence: Evidence) -> Outcome:
    """Ask the oracles of the case in order. After a crash no other oracle is asked, as the runs are not complete."""
    crash: Judgement = ORACLES.get("crash").judge(evidence)
    if found := crash.findings:
        return Outcome(Verdict.CRASH, found[0].message, findings=found, looked_at={"crash": crash.looked_at})
    outcome, notes = Outcome(Verdict.PASS), list[str]()
    orders = ["ordered"] if any(run.moved for run in evidence.runs) else []
    for name in dict.fromkeys((*evidence.case.oracles, *orders, "crash")):
        judgement: Judgement = crash if name == "crash" else ORACLES.get(name).judge(evidence)
        outcome.findings.extend(judgement.findings)
        outcome.looked_at[name] = judgement.looked_at
        outcome.accuracy = judgement.accuracy or outcome.accuracy
        outcome.cause = judgement.cause or outcome.cause
        notes.extend(judgement.notes)
    outcome.reason = "; ".join(notes)
    if blind := [name for name, count in outcome.looked_at.items() if not count]:
        # A drawn case is known to show something with our own kernels. A plug-in rounds otherwise, so batches differ.
        has_plugin = any(spec.is_plugin for spec in evidence.case.known_kernels())
        is_only_less = has_plugin and len(blind) < len(evidence.case.oracles)
        outcome.verdict, outcome.cause = Verdict.SKIP if is_only_less else Verdict.ERROR, Code.BLIND
        outcome.reason = f"{', '.join(blind)} judged no element, so this case proves nothing"
    if outcome.findings:
        outcome.findings = most_telling_first(_with_lines(outcome.findings, evidence.runs[0].allocated))
        outcome.verdict, outcome.cause = Verdict.FAIL, ""
        outcome.reason = outcome.findings[0].message
    return outcome


def _with_lines(findings: list[Finding], allocated: Mapping[str, list[str]]) -> list[Finding]:
    """The findings with the lines of code that allocated the memory: of the site that they name, or of the only one."""
    (only,) = allocated if len(allocated) == 1 else ("",)
    return [one.but(at=", ".join(lines)) if (lines := allocated.get(one.site or only)) else one for one in findings]


def never_called(case: Case, runs: Sequence[Run]) -> list[str]:
    """The kernels that the case's id names and no run launched. One name may stand for kernels of several ops.

    A corrupted call may end in its planner.
    """
    if any(run.corrupted for run in runs):
        return []
    launched = {name for run in runs for name in run.launched}
    groups: dict[str, list[str]] = {}
    for name in (case.kernels()[field] for field in case.named):
        groups.setdefault(name.partition("/")[2], []).append(name)
    return [name for group in groups.values() if launched.isdisjoint(group) for name in group]


def _runs(target: Target, job: Job) -> Iterator[Run]:
    """One run for each poison pattern, the main one first. A crashed run is the last one."""
    plan = job.case.poison
    for pattern in plan.patterns:
        FILLED.clear()
        with counting_launches() as launched:
            try:
                run = target.run(poison_of(plan, pattern, sites_of(job), job.case.seed))
            except SystemUnderTestError as error:
                # An earlier finding of a bounds check explains the crash.
                run = Run(pattern, error=bad_index() or error)
            except RuntimeError as error:
                # Memory that ran out outside a kernel says nothing about it.
                if isinstance(error, torch.OutOfMemoryError) or not is_device_failure(error):
                    raise
                line = in_one_line(error)
                run = Run(pattern, error=bad_index() or KernelError(line, cause=Code.DEVICE, error=line))
        run.launched, run.filled = dict(launched), dict(FILLED)
        yield run
        if run.error is not None or run.refusal is not None:
            return


def sites_of(job: Job) -> frozenset[str]:
    return frozenset(job.poisoned_sites)


def poison_of(plan: PoisonPlan, pattern: str, sites: frozenset[str], seed: int) -> Poison:
    return Poison(pattern, sites, strict=plan.strict, seed=seed, ignore_contracts=plan.ignore_contracts)
