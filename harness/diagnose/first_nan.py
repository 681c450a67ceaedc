"""Who wrote the first NaN of a failure and who read the memory first: the case once more, with the recorder."""

from __future__ import annotations

from harness.records import Blame, Job


def why_not(job: Job) -> str:
    """Why a failing job is not run with the recorder, in a sentence; empty when it can be."""
    return "" if job.case.system == "engine" else f"the recorder watches the engine, not system {job.case.system}"


def recorded_job(job: Job, blame: Blame) -> Job:
    """The trial for a failing `job`: under all its poison, and searched for the first reader of what is to blame."""
    own = job.case.poison.sites if job.sites is None else job.sites
    # The search for a reader runs the case several times.
    return job.model_copy(
        update={
            "key": f"{job.key}~first-nan",
            "first_nan": blame.sites or own,
            "timeout_seconds": 4 * job.timeout_seconds,
        }
    )
