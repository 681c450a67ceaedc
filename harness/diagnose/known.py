"""Known failures of releases: expected while they last, and a failure of the run when they are gone."""

from __future__ import annotations

from collections.abc import Mapping

from harness.core.cases import Job, KnownFailure
from harness.core.records import CaseResult, Finding, Verdict

ORACLE = "known"
"""The `oracle` of the finding that a known failure is gone."""


def settled(job: Job, result: CaseResult, versions: Mapping[str, str]) -> CaseResult:
    """`result` with the verdict that the case's known failure of the installed release gives, if there is one.

    The expected failure gets the verdict `known`. A pass becomes a failure: the entry must go, as it would hide the
    next regression. `versions` are the installed engines by name. A job with an injected bug is left as it is.
    """
    entry = _entry(job, versions)
    if entry is None or job.faults:
        return result
    where = f"{entry.issue}, known in {entry.engine} {entry.versions}"
    if result.verdict.value in entry.expect:
        return result.model_copy(
            update={"verdict": Verdict.KNOWN, "reason": f"{where}: {result.reason}", "known": entry}
        )
    if result.verdict is not Verdict.PASS:
        return result
    gone = f"passes on {entry.engine} {versions[entry.engine]}, which is known to fail: {where}; narrow its `versions`"
    finding = Finding(oracle=ORACLE, message=gone)
    return result.model_copy(update={"verdict": Verdict.FAIL, "reason": gone, "findings": (finding,), "known": entry})


def _entry(job: Job, versions: Mapping[str, str]) -> KnownFailure | None:
    known = (entry for entry in job.case.known if entry.engine in versions)
    return next((entry for entry in known if entry.covers(versions[entry.engine])), None)
