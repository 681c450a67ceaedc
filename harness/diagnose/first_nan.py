"""The first writer of a NaN and the first reader of the memory to blame: the case runs again with the recorder."""

from __future__ import annotations

from harness.core.cases import AskFirstNan, Job
from harness.core.catalog import SYSTEMS
from harness.core.records import Blame


def why_not(job: Job) -> str:
    """Why a failing job cannot run with the recorder, in a sentence; empty if it can."""
    if job.case.kind.records_first_nan:
        return ""
    able = " and ".join(spec.name for spec in SYSTEMS if spec.records_first_nan)
    return f"the recorder watches {able}, not system {job.case.system}"


def recorded_job(job: Job, blame: Blame) -> Job:
    """The trial of a failing `job` with all its poison, which also finds the first reader of the memory to blame."""
    case = job.case.model_copy(update={"params": job.case.params.recorded()})
    # The search for a reader runs the case several times.
    return job.model_copy(
        update={
            "key": f"{job.key}~first-nan",
            "case": case,
            "ask": AskFirstNan(sites=blame.sites or job.poisoned_sites),
            "timeout_seconds": 4 * job.timeout_seconds,
            "directory": None,
        }
    )
