"""The verdict of a case: it runs under each of its patterns, and the oracles judge."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from torch_poison.patterns import FILLED, Poison

from harness.core.cases import Case, Job, PoisonPlan
from harness.core.catalog import ORACLES, most_telling_first
from harness.core.cause_codes import Code
from harness.core.cuda_failures import in_one_line, is_device_failure, is_out_of_memory
from harness.core.errors import (
    LOG_TAIL,
    KernelError,
    Refused,
    SystemUnderTestError,
    named,
    stack_of,
)
from harness.core.extras import MissingPackage
from harness.core.findings import Finding
from harness.core.records import Verdict
from harness.evidence.corrupted import CorruptedCall
from harness.evidence.facts import Allocated, Happened
from harness.evidence.honest import Retrial
from harness.evidence.moves import Moved
from harness.evidence.records import Evidence, Judgement, Run
from harness.judge.outcome import Outcome
from harness.judge.target import Target, target_of
from harness.kernels.call import counting_launches
from harness.kernels.conduct import CONDUCT, Conduct
from harness.kernels.plugins import changes_of_imports
from harness.kernels.process_state import PROCESS_CHANGES, ProcessChange, watching, watching_run
from harness.memory.bounds import bad_index


def verdict(job: Job) -> Outcome:
    """Run the case and judge it."""
    target = target_of(job)
    evidence = Evidence(job.case, [])
    refusal = _run_all(target, job, evidence)
    if target.may_differ:
        evidence.repeat = lambda: next(_runs(target, job))
    evidence.runs[0].evidence[:0] = changes_of_imports(job.case.kernels().values())
    outcome = judge(evidence)
    # A refusal that comes late hides no finding of the runs before it.
    if refusal is not None and not outcome.findings:
        raise refusal
    outcome.runs = evidence.runs
    outcome.launched = evidence.runs[0].launched
    # The first pattern is the one that a user sees; the others are twins of it.
    outcome.filled = evidence.runs[0].filled
    outcome.shown = evidence.runs[0].shown
    # Trials of blame are left out: with fewer sites a kernel may rightly not be called.
    never = (
        never_called(job.case, evidence.runs)
        if outcome.verdict is Verdict.PASS and job.sites is None
        else []
    )
    if never:
        outcome.verdict = Verdict.SKIP
        outcome.cause = Code.NEVER_CALLED
        outcome.reason = f"never called: {', '.join(never)}"
        return outcome
    if outcome.verdict is Verdict.PASS:
        _note_events(outcome, job)
    if outcome.verdict is Verdict.CRASH and job.device == "cuda":
        # The driver's log lists errors of many processes, so the message names its case.
        outcome.findings = [
            finding.but(message=f"{job.case.id}: {finding.message}") for finding in outcome.findings
        ]
        outcome.reason = outcome.findings[0].message
    if outcome.verdict is not Verdict.PASS:
        outcome.log = next(
            (log for run in evidence.runs if (log := run.log or _stack(run.error))), ""
        )
    return outcome


def _run_all(target: Target, job: Job, evidence: Evidence) -> Refused | MissingPackage | None:
    """Add the runs to the evidence.

    Returns what made the case end early, if it did: it is no reason to drop a finding.

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


def _note_events(outcome: Outcome, job: Job) -> None:
    """Note the least that a run had of each event that must happen.

    Without one of them, nothing is proved. A case as it is written fails then: the engine does
    something else than what the case is for, such as to find no prefix. Any other case is skipped.
    """
    case = job.case
    if not (wanted := case.params.must_happen):
        return
    # An event may rightly stay out in another engine than ours, with other values than the
    # scenario's, or with a kernel that rounds otherwise.
    is_certain = case.system == "engine" and not case.is_varied and not case.has_plugin
    # A trial of blame asks whether the failure is there too: no skip is one.
    if job.sites is not None and not is_certain:
        return
    happened_in = [run.first(Happened) for run in outcome.runs]
    counts = {
        event: min(found.counts.get(event, 0) if found else 0 for found in happened_in)
        for event in wanted
    }
    if missing := [event for event, count in counts.items() if not count]:
        outcome.reason = f"never happened: {', '.join(missing)}"
        if is_certain:
            outcome.verdict = Verdict.FAIL
            outcome.reason += ", for which this case is made; another engine may choose so"
            outcome.findings = [
                Finding(oracle="policy", message=outcome.reason, cause=Code.NEVER_HAPPENED)
            ]
        else:
            outcome.verdict = Verdict.SKIP
            outcome.cause = Code.NEVER_HAPPENED
        return
    happened = "happened: " + ", ".join(f"{event} {count}" for event, count in counts.items())
    outcome.reason = "; ".join(filter(None, (outcome.reason, happened)))


def _stack(error: SystemUnderTestError | None) -> str:
    """The traceback of an error that a kernel's own code raised; empty for any other error."""
    if error is None or not error.at:
        return ""
    return stack_of(error.__cause__ or error)[-LOG_TAIL:]


def judge(evidence: Evidence) -> Outcome:
    """Ask the oracles of the case in order.

    After a crash none is asked that reads results, as the runs are not complete.
    """
    asked: dict[str, Judgement] = {"crash": ORACLES.get("crash").judge(evidence)}
    if evidence.all(ProcessChange):
        asked["process"] = ORACLES.get("process").judge(evidence)
    if asked["crash"].findings and evidence.all(Conduct):
        # In front: what a kernel did explains its crash.
        asked = {"honest": ORACLES.get("honest").judge(evidence), **asked}
    outcome = _judged(evidence, asked)
    _say_changes(outcome, asked.get("process"))
    return outcome


def _judged(evidence: Evidence, asked: dict[str, Judgement]) -> Outcome:
    """The outcome, without the remarks on the process.

    `asked` has the judgements of oracles that read no results.
    """
    if asked["crash"].findings:
        found = [finding for judgement in asked.values() for finding in judgement.findings]
        looked_at = {name: judgement.looked_at for name, judgement in asked.items()}
        return Outcome(Verdict.CRASH, found[0].message, findings=found, looked_at=looked_at)
    outcome = Outcome(Verdict.PASS)
    notes = list[str]()
    orders = ["ordered"] if evidence.all(Moved) else []
    for name in dict.fromkeys((*evidence.case.oracles, *orders, *asked)):
        judgement: Judgement = asked.get(name) or ORACLES.get(name).judge(evidence)
        outcome.findings.extend(judgement.findings)
        outcome.looked_at[name] = judgement.looked_at
        outcome.accuracy = judgement.accuracy or outcome.accuracy
        outcome.cause = judgement.cause or outcome.cause
        # What is said of the process is said of each verdict.
        notes.extend(judgement.notes if name != "process" else ())
    # Of a right answer, only what the kernel did is asked: trials cost calls.
    has_conduct = bool(evidence.all(Conduct))
    if has_conduct or (outcome.findings and evidence.all(Retrial)):
        honest = ORACLES.get("honest").judge(evidence)
        outcome.findings.extend(honest.findings)
        notes.extend(honest.notes)
        outcome.cause = outcome.cause or (Code.KEPT if honest.notes else "")
    outcome.reason = "; ".join(notes)
    if blind := [name for name, count in outcome.looked_at.items() if not count]:
        # A drawn case is known to show something with our own kernels. A plug-in rounds otherwise,
        # so batches differ.
        is_only_less = evidence.case.has_plugin and len(blind) < len(evidence.case.oracles)
        outcome.verdict = Verdict.SKIP if is_only_less else Verdict.ERROR
        outcome.cause = Code.BLIND
        outcome.reason = f"{', '.join(blind)} judged no element, so this case proves nothing"
        if not is_only_less:
            # What the engine chose otherwise than declared, such as to replay no graph, is why.
            outcome.findings.extend(ORACLES.get("policy").judge(evidence).findings)
    elif outcome.accuracy and outcome.accuracy.verdict is Verdict.SKIP:
        outcome.verdict = Verdict.SKIP
        outcome.cause = Code.POWERLESS
        outcome.reason = outcome.accuracy.judgement.statement
    if outcome.findings:
        outcome.findings = most_telling_first(
            _with_lines(outcome.findings, evidence.runs[0].all(Allocated))
        )
        outcome.verdict = Verdict.FAIL
        outcome.cause = ""
        outcome.reason = outcome.findings[0].message
    return outcome


def _say_changes(outcome: Outcome, process: Judgement | None) -> None:
    """Add the remarks on the process to the reason of the outcome: they may explain a failure."""
    if process is None or not process.notes:
        return
    remark = "; ".join(process.notes)
    if outcome.findings:
        first = outcome.findings[0]
        outcome.findings[0] = first.but(message=f"{first.message} ({remark})")
        outcome.reason = outcome.findings[0].message
        return
    if outcome.verdict is Verdict.PASS:
        outcome.cause = outcome.cause or Code.RESTORED
    outcome.reason = "; ".join(filter(None, (remark, outcome.reason)))


def _with_lines(findings: list[Finding], allocated: Sequence[Allocated]) -> list[Finding]:
    """The findings with the lines of code that allocated the memory: of the site that they name, or
    of the only one.
    """
    lines_of = {one.site: one.lines for one in allocated}
    (only,) = lines_of if len(lines_of) == 1 else ("",)
    return [
        one.but(at=", ".join(lines)) if (lines := lines_of.get(one.site or only)) else one
        for one in findings
    ]


def never_called(case: Case, runs: Sequence[Run]) -> list[str]:
    """The kernels that the case's id names and no run launched.

    One name may stand for kernels of several ops.

    A corrupted call may end in its planner.
    """
    if any(run.first(CorruptedCall) for run in runs):
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
        with (
            counting_launches() as launched,
            PROCESS_CHANGES.noting() as changes,
            CONDUCT.noting() as conduct,
        ):
            try:
                with watching_plugins(job):
                    run = target.run(poison_of(plan, pattern, sites_of(job), job.case.seed))
            except Exception as error:
                run = Run(pattern, error=_error_under_test(error, changes))
        run.launched = dict(launched)
        run.filled = dict(FILLED)
        run.evidence += changes
        run.evidence += conduct
        yield run
        if run.error is not None or run.refusal is not None:
            return


def _error_under_test(error: Exception, changes: Sequence[ProcessChange]) -> SystemUnderTestError:
    """The error of the system under test that ended a run.

    Raises `error` if it is the harness's own.
    """
    if isinstance(error, SystemUnderTestError):
        # An earlier finding of a bounds check explains the crash.
        return bad_index() or error
    # Memory that ran out outside a kernel says nothing about it.
    if is_device_failure(error) and not is_out_of_memory(error):
        line = in_one_line(error)
        return bad_index() or KernelError(line, cause=Code.DEVICE, error=line)
    if replaced := next((change for change in changes if change.is_failure), None):
        message = (
            f"the harness raised {named(error)}, with what {replaced.who} put in place of its code"
            " or torch's"
        )
        return KernelError(message, cause=Code.REPLACED, kernel=replaced.who)
    raise error


def watching_plugins(job: Job) -> AbstractContextManager[None]:
    """Within the block plug-ins run, if the job has some: what they leave changed is restored."""
    if names := [spec.name for spec in job.case.known_kernels() if spec.is_plugin]:
        # The calls of a kernel are watched one by one.
        return watching_run(" and ".join(names))
    files = [Path(file).name for file in job.plugins]
    return watching(" and ".join(files)) if files else nullcontext()


def sites_of(job: Job) -> frozenset[str]:
    return frozenset(job.poisoned_sites)


def poison_of(plan: PoisonPlan, pattern: str, sites: frozenset[str], seed: int) -> Poison:
    return Poison(
        pattern, sites, strict=plan.strict, seed=seed, ignore_contracts=plan.ignore_contracts
    )
