"""`mla-harness shrink CASE`: the smallest case that still fails for the same reason, and the steps to it."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.cli import shared_options
from harness.cli.output import console, print_json
from harness.core.records import ShrinkStep
from harness.diagnose.session import candidates, declared_oracle, first_failure
from harness.diagnose.shrink import shrink as search
from harness.report.terminal import print_shrunk
from harness.report.wording import reproduce_case
from harness.run.planning import Planner, Wanted
from harness.run.runner import WorkerPool

Seconds = Annotated[float, typer.Option("--seconds", metavar="SECONDS", min=0.0, help="Time for smaller cases.")]


def shrink(
    selector: Annotated[str, typer.Argument(metavar="CASE", help="A case id, or a scenario (its first failing case).")],
    fault: shared_options.Fault = None,
    kernel: shared_options.Kernel = None,
    plugin: shared_options.Plugins = None,
    seconds: Seconds = 60.0,
    device: shared_options.Device = "auto",
    seed: shared_options.Seed = 0,
    timeout: shared_options.Timeout = 60.0,
    workers: shared_options.Workers = None,
    scenarios: shared_options.Scenarios = None,
    json: shared_options.Json = False,
) -> None:
    """Find the smallest case that fails for the same reason."""
    kernels = (kernel,) if kernel else ()
    wanted = Wanted((selector,), (), device, kernels, tuple(plugin or ()), fault, seed, timeout, scenarios)
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
    return f"trying smaller cases: {step.what} is {step.after}"[:100]
