"""What compute-sanitizer watches: a child process that runs one job."""

from __future__ import annotations

from typing import Any

from harness.core.cases import Job
from harness.judge.run_case import run_case
from harness.run.protocol import answer_once


def run(job: Job) -> dict[str, Any]:
    """The result of the job."""
    return run_case(job).model_dump(mode="json")


if __name__ == "__main__":
    answer_once(Job, run)
