"""`mla-harness doctor`: what can run on this machine, and why the rest cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.cli.output import console, print_block, print_json
from harness.cli.shared_options import Json
from harness.report.wording import printable

if TYPE_CHECKING:
    from harness.core.records import CaseResult
    from harness.run.environment import Environment


def doctor(json: Json = False) -> None:
    """Show what can run on this machine, why the rest cannot, and what would bring it."""
    # Imported here only: a page of help must be instant.
    from harness.core.catalog import BROKEN
    from harness.report.progress import Waiting
    from harness.run.environment import DEVICES
    from harness.run.planning import JobPlanner, Wanted
    from harness.run.runner import WorkerPool
    from harness.run.worker import LOOK

    # The worker says of each case of `mla-harness run` whether it can run, and runs none.
    with Waiting(console(json), "looking at the cases"), WorkerPool(1, execute=LOOK) as pool:
        environment = pool.start()
        described = pool.describe_kernels()
        looked = pool.run_in_order(JobPlanner(Wanted(), pool).jobs())
    kernels = [
        {
            "kernel": f"{d['op']}/{d['short_name']}",
            **{device: _answer(d, environment, device) for device in DEVICES},
        }
        for d in described
    ]
    devices = {device: str(environment.why_not(device) or "yes") for device in DEVICES}
    if json:
        found = {
            "environment": environment.model_dump(mode="json"),
            "devices": devices,
            "kernels": kernels,
        }
        print_json(found | {"broken_engines": BROKEN, "plan": _plan(looked)})
        return
    _print(environment, kernels, devices)
    _print_gains(looked)


def _plan(looked: list[CaseResult]) -> dict[str, Any]:
    """How many cases `mla-harness run` plans here, how many it can judge, and what would add
    more.
    """
    from harness.core.records import Verdict
    from harness.report.gains import gains

    found = [
        {"cases": gain.num_cases, "things": dict(gain.lacks), "commands": gain.commands}
        for gain in gains(looked)
    ]
    can_run = sum(result.verdict is not Verdict.SKIP for result in looked)
    return {"cases": len(looked), "can_run": can_run, "gains": found}


def _print_gains(looked: list[CaseResult]) -> None:
    """Print what one thing more would let this machine judge, most useful first."""
    from harness.report.gains import gains

    plan = _plan(looked)
    screen = console()
    can_run = f"{plan['can_run']:,} of its {plan['cases']:,} cases"
    screen.print(f"\n`mla-harness run` judges {can_run} here", style="bold", markup=False)
    for gain in gains(looked):
        screen.print(f"  {gain.sentence}", markup=False)
        for command in gain.commands:
            # Not wrapped: it is there to be copied.
            screen.print(f"    {command}", markup=False, soft_wrap=True)


def _print(
    environment: Environment, kernels: list[dict[str, Any]], devices: dict[str, str]
) -> None:
    """Print what is true of this machine: facts, engines that do not load, devices, and the kernels
    of each.
    """
    from rich.padding import Padding
    from rich.text import Text

    from harness.core.catalog import BROKEN, ENGINES

    screen = console()
    gpus = ", ".join(gpu.name for gpu in environment.gpus)
    facts = environment.model_dump(mode="json", exclude={"engines", "engine_paths", "variables"})
    facts |= {engine.name: environment.engines.get(engine.name) for engine in ENGINES}
    facts |= {
        "gpus": gpus or "none",
        "cuda": environment.cuda or "none",
        "cluster": environment.cluster or "none",
    }
    print_block(
        screen,
        "this machine",
        {name: "not installed" if v is None else str(v) for name, v in facts.items()},
    )
    print_block(screen, "variables of engines", environment.variables)
    print_block(screen, "engines that do not load", BROKEN)
    print_block(screen, "devices", devices)
    # The block above says why a device cannot be used at all.
    for device in (name for name, answer in devices.items() if answer == "yes"):
        by_answer: dict[str, list[str]] = {}
        for row in kernels:
            by_answer.setdefault(row[device], []).append(row["kernel"])
        screen.print(f"\nkernels on {device}", style="bold")
        for answer, names in by_answer.items():
            screen.print(Padding(Text(printable(f"{answer}: {', '.join(names)}")), (0, 0, 0, 2)))


def _answer(described: dict[str, Any], environment: Environment, device: str) -> str:
    """`yes`, or why a kernel cannot run on a device: the machine's reason before the kernel's
    own.
    """
    if device not in described["devices"]:
        return "not made for it"
    return str(environment.why_not(device) or "") or described["why_not"][device] or "yes"
