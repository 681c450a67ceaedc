"""The work of a run: jobs, judgement of faults and known failures, diagnosis.

Each result is stored at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from typing import Protocol

from harness.core.cases import Case, Job, KnownFailure
from harness.core.catalog import FAULTS
from harness.core.cause_codes import Code
from harness.core.errors import InputError
from harness.core.fault_outcomes import declared_blame
from harness.core.findings import Finding
from harness.core.records import BAD, FAILED, Blame, CaseResult, FaultResult, Verdict
from harness.diagnose.blame import find_blame
from harness.diagnose.repeated_crashes import RepeatedCrashes
from harness.diagnose.session import Limits, Session
from harness.run.pool import JobPool
from harness.scenario.schema import FaultUse
from harness.store.run_folder import RunStore


class DiagnosisProgress(Protocol):
    """What shows the progress of a run."""

    def on_start(self, job: Job) -> None: ...

    def on_result(self, result: CaseResult, *, announce: bool = True) -> None: ...


MOST_CAUSES = 3
"""A kernel that fails for so many causes is judged: `mla-harness judge` stops there."""
MOST_FAILURES = 8
"""Failing cases of a judged kernel, of however few causes: more of them say nothing new."""
KNOWN_ORACLE = "known"
"""The `oracle` of the finding that a known failure is gone."""


def run_jobs(
    store: RunStore,
    pool: JobPool,
    progress: DiagnosisProgress,
    *,
    max_failures: int | None = None,
    keep_going: bool = False,
    most_causes: int | None = None,
) -> None:
    """Run what is left of a run: its jobs, and its controls (the same cases with a fault).

    Stops after `max_failures` failures, or `most_causes` causes: see :func:`kind_of`.

    Cases that would repeat a crash of a user's kernel are left out, see :class:`RepeatedCrashes`,
    unless `keep_going`. Raises InputError if such a kernel cannot be called at all: its case stays
    unfinished.
    """
    environment = pool.start()
    store.note_environment(environment.model_dump(mode="json"))
    planned = store.jobs_by_key()
    controls = {control.job.key: control for control in store.untried_controls()}
    # A long case must not be the last to start, as all other workers would wait for it. A crash of
    # a user's kernel is clearest in a call of it alone.
    jobs = sorted(
        [*store.unfinished(), *(control.job for control in controls.values())],
        key=lambda job: (not job.case.kind.asks_canary, bool(job.plugins) and job.case.op is None),
    )
    num_bad = 0
    causes: set[tuple[str, str, str]] = set()
    held_back = {job.key: found for job in jobs if (found := quarantined(job, environment.engines))}
    for key, result in held_back.items():
        (store.add_tried if key in controls else store.add)(result)
        progress.on_result(result, announce=key not in controls)
    waiting = deque(store.placed(job) for job in jobs if job.key not in held_back)
    crashes = RepeatedCrashes()
    with closing(pool.run(waiting, progress.on_start)) as results:
        for result in results:
            # The file is broken, not the kernel: the case stays unfinished and runs again when it
            # is mended.
            if result.cause == Code.BROKEN_PLUGIN:
                raise InputError(result.reason)
            if result.key in controls:
                store.add_tried(result)
            else:
                result = apply_known(planned[result.key], result, environment.engines)
                store.add(result)
                num_bad += result.verdict in BAD
            progress.on_result(result, announce=result.key not in controls)
            # Here and not in the pool: a control that fails is meant to.
            causes |= {kind_of(one) for one in result.findings[:1]}
            if num_bad == max_failures or len(causes) == most_causes:
                return
            if keep_going or result.key in controls:
                continue
            for left_out in crashes.left_out_after(planned[result.key], result, waiting):
                store.add(left_out)
                progress.on_result(left_out)


def kind_of(finding: Finding) -> tuple[str, str, str]:
    """What failing cases of one cause have in common: oracle, code and tensor."""
    return finding.oracle, finding.cause, finding.tensor


def judge_faults(store: RunStore, pool: JobPool) -> None:
    """Blame, judge and store each fault that was tried and is not judged yet."""
    tried = store.tried()
    todo = [
        (control, tried[control.job.key])
        for control in store.unfinished_controls()
        if control.job.key in tried
    ]
    failing = [(control.job, result) for control, result in todo if result.has_failed]
    blames = find_blame(pool, failing)
    clean = store.finished()
    for control, result in todo:
        blame, seconds = blames.get(control.job.key, (Blame(), 0.0))
        store.add_fault(
            judge_fault(control.use, result, blame, seconds, clean.get(control.job.case.id))
        )


def diagnose(store: RunStore, pool: JobPool, *, shrink_seconds: float = 0.0) -> None:
    """Store the missing blames of failing cases, and the smallest case for each reason, within
    `shrink_seconds`.
    """
    session = Session(pool, Limits(shrink_seconds=shrink_seconds))
    jobs = store.jobs_by_key()
    # A run that is resumed has new time for the searches that ran out of it.
    blamed = {key for key, blame in store.blames().items() if blame.cause != Code.OUT_OF_TIME}
    failures = [(jobs[result.key], result) for result in store.results() if result.has_failed]
    for key, blame in session.explain(
        [pair for pair in failures if pair[1].key not in blamed]
    ).items():
        store.add_blame(key, blame)
    known = store.shrunk()
    for shrunk in session.smallest(
        [pair for pair in failures if pair[1].key not in known], store.blames()
    ):
        store.add_shrunk(shrunk)


def exit_code(
    results: Sequence[CaseResult],
    faults: Sequence[FaultResult] = (),
    tried: Iterable[CaseResult] = (),
) -> int:
    """0 if every case that ran passed, 1 for a regression or a fault not caught, 3 if the harness
    could not judge.

    A fault that is seen with another blame than declared is not caught: the blame is a part of the
    verdict. `tried` are the results with `faults`. A fault with an error was not judged, so it was
    not missed.
    """
    verdicts = {result.verdict for result in results}
    errors = {(result.fault, result.id) for result in tried if result.verdict is Verdict.ERROR}
    not_caught = {(fault.fault, fault.case) for fault in faults if not fault.caught}
    # A regression is told even if the harness could not judge other cases.
    if verdicts & set(FAILED) or not_caught - errors:
        return 1
    return 3 if errors or verdicts & {Verdict.ERROR, Verdict.NOT_RUN} else 0


def judge_fault(
    use: FaultUse,
    result: CaseResult,
    blame: Blame,
    trial_seconds: float,
    clean: CaseResult | None = None,
) -> FaultResult:
    """Compare a result and its blame with the oracles and sites that the scenario declares for a
    fault.

    `clean` is the result of the same case without the fault, if it ran.
    """
    by = tuple(dict.fromkeys(finding.oracle for finding in result.findings))
    reason = _why_missed(use, result, by, clean)
    is_seen = not reason
    if is_seen and not use.allows_blame(blame.sites):
        got = ", ".join(blame.sites) or "no site"
        declared = declared_blame(use.blames, use.may_blame)
        reason = f"seen by {', '.join(by)}, blamed {got} where {declared} was declared: {blame.how}"
    return FaultResult(
        fault=use.name,
        scenario=result.scenario,
        case=result.id,
        ref=FAULTS.get(use.name).ref,
        seen=is_seen,
        caught=not reason,
        by=by,
        blamed=blame.sites,
        expected_by=use.caught_by,
        expected_blame=use.blames,
        allowed_blame=use.may_blame,
        seconds=round(result.seconds + trial_seconds, 3),
        reason=reason,
        how=blame.how,
        findings=result.findings,
        accuracy=result.accuracy,
    )


def _why_missed(
    use: FaultUse, result: CaseResult, by: tuple[str, ...], clean: CaseResult | None
) -> str:
    """Why no declared oracle sees the fault, in a sentence; empty if one fires with it, and not
    without it.
    """
    if result.verdict not in FAILED:
        return f"the case ended in {result.verdict.value}" + (
            f": {result.reason}" if result.reason else ""
        )
    fired = [oracle for oracle in use.caught_by if oracle in by]
    if "answers" in use.caught_by and by == ("crash",):
        # An engine that died gave no answers. The stale memory decides whether it dies.
        fired = ["crash"]
    if not fired:
        return f"expected {' or '.join(use.caught_by)} to fire, not {', '.join(by)}"
    without = {finding.oracle for finding in clean.findings} if clean else set()
    # An oracle that fires anyway proves nothing about the fault.
    if without.issuperset(fired):
        return f"{' and '.join(fired)} fires without the fault too"
    return ""


def _is_here(entry: KnownFailure, case: Case, versions: Mapping[str, str]) -> bool:
    if entry.kernel:
        return case.uses_kernel({entry.kernel})
    return entry.engine in versions and entry.covers(versions[entry.engine])


def known_entry(job: Job, versions: Mapping[str, str]) -> KnownFailure | None:
    """The known failure of the installed release, or of the kernel, if the case has one."""
    return next((entry for entry in job.case.known if _is_here(entry, job.case, versions)), None)


def quarantined(job: Job, versions: Mapping[str, str]) -> CaseResult | None:
    """The result of a case that must not be launched:

    `known`, or a skip of an injected bug; None for other cases.
    """
    entry = known_entry(job, versions)
    if entry is None or entry.run != "never":
        return None
    reason = f"{entry.issue}, known in {entry.where}: not launched, as the entry says `run: never`"
    return CaseResult.of(
        job,
        Verdict.SKIP if job.fault else Verdict.KNOWN,
        cause=Code.KNOWN,
        reason=reason,
        known=entry,
    )


def apply_known(job: Job, result: CaseResult, versions: Mapping[str, str]) -> CaseResult:
    """`result` with the verdict that the case's known failure of the installed release gives, if
    there is one.

    The expected failure gets the verdict `known`. A pass becomes a failure: the entry must go, as
    it would hide the next regression. `versions` are the installed engines by name. A job with an
    injected bug is left as it is.
    """
    entry = known_entry(job, versions)
    if entry is None or job.fault:
        return result
    where = f"{entry.issue}, known in {entry.where}"
    if result.verdict.value in entry.expect:
        return result.but(
            verdict=Verdict.KNOWN, cause=Code.KNOWN, reason=f"{where}: {result.reason}", known=entry
        )
    if result.verdict is not Verdict.PASS:
        return result
    passing = f"{entry.engine} {versions.get(entry.engine)}"
    mend = "narrow its `versions`"
    if entry.kernel:
        passing = entry.where
        mend = "delete the entry"
    gone = f"passes on {passing}, which is known to fail: {where}; {mend}"
    finding = Finding(oracle=KNOWN_ORACLE, message=gone, cause=Code.KNOWN_GONE)
    return result.but(verdict=Verdict.FAIL, reason=gone, findings=(finding,), known=entry)
