"""`mla-harness repro CASE --script FILE`: export a failing case as a script."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console

from harness.cli.shrink import TRYING, step_shower
from harness.core.cases import Job
from harness.core.errors import InputError
from harness.core.files import write_atomic
from harness.core.records import CaseResult, Shrunk, Verdict
from harness.diagnose.budget import Budget
from harness.diagnose.script.export import Exported, first_that_shows, with_fault
from harness.diagnose.script.render import why_not
from harness.diagnose.session import candidates, first_failure
from harness.diagnose.shrink import shrink
from harness.report.progress import Waiting
from harness.report.wording import num
from harness.run.planning import JobPlanner, Wanted
from harness.run.runner import WorkerPool

BAR_SECONDS = 55.0
"""What an export plans to take at most, 5 s below the limit of a minute; more if finding a failure
or one run of the script takes half of it.
"""
MAX_SHRINK_SECONDS = 20.0


def export_script(
    wanted: Wanted,
    pool: WorkerPool,
    screen: Console,
    path: Path,
    *,
    is_pytest: bool,
    seconds: float | None,
) -> None:
    """Write the script of the failure that `wanted` names to `path`. Raises as `_exported` does."""
    if path.suffix != ".py" or not path.absolute().parent.is_dir():
        raise InputError(
            f"--script {path}: give a file name that ends in .py, in a folder that exists"
        )
    exported = _exported(with_fault(wanted), pool, screen, is_pytest=is_pytest, seconds=seconds)
    write_atomic(path, exported.text)
    lines = num(exported.text.count("\n"), "line")
    screen.print(f"{path}: {lines}, from {exported.case.id}", markup=False, soft_wrap=True)
    screen.print(exported.check.sentence, markup=False, soft_wrap=True)


def _exported(
    wanted: Wanted, pool: WorkerPool, screen: Console, *, is_pytest: bool, seconds: float | None
) -> Exported:
    """Find the failure that `wanted` names, shrink it, and make a script that was seen to show it.

    `seconds` is the time for smaller cases. None: what is left of BAR_SECONDS after the script was
    run, at most MAX_SHRINK_SECONDS. Raises InputError if nothing fails or no script can show it,
    HarnessError unless the script fails with the bug and passes without.
    """
    started = time.monotonic()
    with Waiting(screen, "looking for a failing case", pool):
        job, result = first_failure(
            pool, candidates(JobPlanner(wanted, pool)), lambda job: why_not(job.case, job.fault)
        )
    with_bug = f" with {job.fault}" if job.fault else ""
    screen.print(f"{job.case.id}{with_bug} fails", markup=False, soft_wrap=True)
    shrunk = None
    if job.case.kind.shows_launches:
        shrunk = _shrunk(pool, screen, job, result, seconds, time.monotonic() - started)
    with Waiting(screen, "running the script with and without the bug"):
        return first_that_shows(
            job, result, shrunk, pool.start(), is_pytest=is_pytest, seconds=wanted.timeout_seconds
        )


def _shrunk(
    pool: WorkerPool,
    screen: Console,
    job: Job,
    result: CaseResult,
    seconds: float | None,
    spent: float,
) -> Shrunk:
    blame_budget = None
    if seconds is None:
        # The script imports what the first case imported. A trial that kills its worker has the
        # next one import it too.
        left = BAR_SECONDS - spent * (3 if result.verdict is Verdict.CRASH else 2)
        blame_budget = Budget(max(0.0, left / 2))
        seconds = min(MAX_SHRINK_SECONDS, blame_budget.seconds)
    if job.device == "cuda":
        # One worker for all trials: a worker on another GPU would import an engine again.
        pool.num_workers = 1
    with Waiting(screen, TRYING, pool) as live:
        show = step_shower(live)
        return shrink(pool, job, result, seconds=seconds, blame_budget=blame_budget, on_step=show)
