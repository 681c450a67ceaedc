"""`mla-harness shrink CASE`: the smallest case that still fails for the same reason, and the way there."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.cli.options import (
    Device,
    Fault,
    Json,
    Kernel,
    Plugins,
    Scenarios,
    Seed,
    Timeout,
    Workers,
    resolved,
)
from harness.cli.performing import console, print_json
from harness.core.records import ShrinkStep
from harness.diagnose.session import candidates, declared_oracle, first_failure
from harness.diagnose.shrink import shrink as search
from harness.report.terminal import print_shrunk
from harness.report.wording import reproduce_case
from harness.run.planning import Planner, Wanted
from harness.run.runner import WorkerPool

Seconds = Annotated[float, typer.Option("--seconds", min=0.0, help="How long to look for smaller cases.")]


def shrink(
    selector: Annotated[str, typer.Argument(metavar="CASE", help="A case id, or a scenario: its first failing case.")],
    fault: Fault = None,
    kernel: Kernel = None,
    plugin: Plugins = None,
    seconds: Seconds = 60.0,
    device: Device = "auto",
    seed: Seed = 0,
    timeout: Timeout = 60.0,
    workers: Workers = None,
    scenarios: Scenarios = None,
    json: Json = False,
) -> None:
    """Reduce a failing case to the smallest that fails for the same reason."""
    wanted = Wanted((selector,), None, device, kernel, resolved(plugin), fault, seed, timeout, scenarios)
    screen = console(json)
    with WorkerPool(workers) as pool:
        with screen.status("looking for a failing case"):
            job, result = first_failure(pool, candidates(Planner(wanted, pool)))
        screen.print(f"shrinking {job.case.id}" + (f" with {fault}" if fault else ""), markup=False, soft_wrap=True)
        with screen.status("trying smaller cases") as status:
            oracle = declared_oracle(wanted, job)
            shrunk = search(
                pool, job, result, oracle=oracle, seconds=seconds, on_step=lambda step: status.update(step_line(step))
            )
    print_shrunk(screen, shrunk, reproduce_case(shrunk.case.id, shrunk.fault, wanted.reproduction()))
    if json:
        print_json(shrunk.model_dump(mode="json"))


def step_line(step: ShrinkStep) -> str:
    """What a live line says of the newest step."""
    return f"trying smaller cases: {step.what} is {step.after}"[:100]
