"""`mla-harness shrink CASE`: the smallest case that still fails for the same reason, and the steps
to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import typer

from harness.cli import shared_options
from harness.cli.option_records import RunningCases, with_options
from harness.cli.output import console, print_json
from harness.core.records import ShrinkStep
from harness.diagnose.session import candidates, declared_oracle, first_failure
from harness.diagnose.shrink import shrink as search
from harness.report.progress import Waiting
from harness.report.terminal import print_shrunk
from harness.report.wording import one_line, reproduce_case
from harness.run.planning import JobPlanner
from harness.run.runner import WorkerPool

TRYING = "trying smaller cases"


@dataclass(frozen=True, kw_only=True)
class ShrinkOptions(RunningCases):
    """Options of `mla-harness shrink`."""

    selector: Annotated[
        str,
        typer.Argument(metavar="CASE", help="A case id, or a scenario (its first failing case)."),
    ]
    fault: shared_options.Fault = None
    kernel: shared_options.Kernel = None
    plugin: shared_options.Plugins = None
    seconds: Annotated[float, shared_options.seconds("Time for smaller cases.")] = 60.0


@with_options(ShrinkOptions)
def shrink(context: typer.Context, given: ShrinkOptions) -> None:
    """Find the smallest case that fails for the same reason."""
    judged = {
        "kernels": (given.kernel,) if given.kernel else (),
        "plugins": tuple(given.plugin or ()),
    }
    wanted = given.wanted(selectors=(given.selector,), fault=given.fault, **judged)
    screen = console(given.json)
    with WorkerPool(given.workers) as pool:
        with Waiting(screen, "looking for a failing case", pool):
            job, result = first_failure(pool, candidates(JobPlanner(wanted, pool)))
        with_bug = f" with {given.fault}" if given.fault else ""
        screen.print(f"shrinking {job.case.id}{with_bug}", markup=False, soft_wrap=True)
        with Waiting(screen, TRYING, pool) as live:
            oracle = declared_oracle(wanted, job, result)
            show = step_shower(live)
            shrunk = search(pool, job, result, oracle=oracle, seconds=given.seconds, on_step=show)
    print_shrunk(
        screen, shrunk, reproduce_case(shrunk.case.id, shrunk.fault, wanted.reproduction())
    )
    if given.json:
        print_json(shrunk.model_dump(mode="json"))


def step_shower(live: Waiting) -> Callable[[ShrinkStep], None]:
    """A function that shows an accepted step while the next ones are tried."""
    return lambda step: live.update(one_line(f"{TRYING}: {step.what} is {step.after}", 100))
