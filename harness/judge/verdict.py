"""The answer to `AskVerdict`: runs the case under each of its patterns, and lets the oracles judge."""

from __future__ import annotations

from collections.abc import Iterator

from harness.core.cases import Job, PoisonPlan
from harness.core.catalog import ORACLES
from harness.core.cuda_failures import in_one_line, is_device_failure
from harness.core.cure_names import filled_sites
from harness.core.errors import KernelError
from harness.core.oracles import most_telling_first
from harness.core.records import Verdict
from harness.judge.oracles.crash import CRASHES
from harness.judge.run_records import Evidence, Outcome, Run
from harness.judge.target import target_of
from harness.memory.bounds import bad_index
from harness.memory.poison.patterns import Poison


def answer(job: Job) -> Outcome:
    """Run the case and judge it."""
    evidence = Evidence(job.case, list(_runs(job)))
    if target_of(job).may_differ:
        evidence.repeat = lambda: next(_runs(job))
    outcome = judge(evidence)
    if outcome.verdict is Verdict.CRASH and job.device == "cuda":
        # The driver's log lists errors of many processes, so the message names its case.
        outcome.findings = [
            finding.model_copy(update={"message": f"{job.case.id}: {finding.message.removeprefix(f'{job.case.id}: ')}"})
            for finding in outcome.findings
        ]
        outcome.reason = outcome.findings[0].message
    if outcome.verdict is not Verdict.PASS:
        outcome.log = next((run.log for run in evidence.runs if run.log), "")
    return outcome


def judge(evidence: Evidence) -> Outcome:
    """Ask the oracles of the case in order. After a crash no other oracle is asked, as the runs are not complete."""
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
    """One run for each poison pattern, the main one first. A crashed run is the last one."""
    target, plan = target_of(job), job.case.poison
    for pattern in plan.patterns:
        try:
            run = target.run(poison_of(plan, pattern, sites_of(job), job.case.seed))
        except CRASHES as error:
            # An earlier finding of a bounds check explains the crash.
            run = Run(pattern, error=bad_index() or error)
        except RuntimeError as error:
            if not is_device_failure(error):
                raise
            run = Run(pattern, error=bad_index() or KernelError(f"{job.case.id}: {in_one_line(error)}"))
        yield run
        if run.error is not None:
            return


def sites_of(job: Job) -> frozenset[str]:
    """The sites that a run of the job poisons. A proposed fix may fill others itself."""
    return frozenset(job.poisoned_sites) - frozenset(filled_sites(job.cures))


def poison_of(plan: PoisonPlan, pattern: str, sites: frozenset[str], seed: int) -> Poison:
    """The poison of one run of a case."""
    return Poison(pattern, sites, strict=plan.strict, seed=seed, ignore_contracts=plan.ignore_contracts)
