"""Who wrote the first NaN of a failure and who read the memory first: the case once more, with the recorder."""

from __future__ import annotations

from typing import Any

from harness.core.records import Blame, Job

SERVED: dict[str, Any] = {"epochs": 1, "compare_eager": False}
"""What a recorded case of vLLM changes: it seeks the first NaN, and measures nothing."""
MAX_QUESTIONS = 32
"""Enough of them to put prompts of several steps and answers into one batch."""


def why_not(job: Job) -> str:
    """Why a failing job is not run with the recorder, in a sentence; empty when it can be."""
    if job.case.system in ("engine", "vllm"):
        return ""
    return f"the recorder watches the engine and vLLM, not system {job.case.system}"


def recorded_job(job: Job, blame: Blame) -> Job:
    """The trial for a failing `job`: under all its poison, and searched for the first reader of what is to blame."""
    own = job.case.poison.sites if job.sites is None else job.sites
    case = job.case
    if case.system == "vllm":
        limit = min(case.params.get("limit") or MAX_QUESTIONS, MAX_QUESTIONS)
        case = case.model_copy(update={"params": {**case.params, **SERVED, "limit": limit}})
    # The search for a reader runs the case several times.
    return job.model_copy(
        update={
            "key": f"{job.key}~first-nan",
            "case": case,
            "first_nan": blame.sites or own,
            "timeout_seconds": 4 * job.timeout_seconds,
            "directory": None,
        }
    )
