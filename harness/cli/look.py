"""`mla-harness list`, `show`, `doctor` and `schema`."""

from __future__ import annotations

import json as jsonlib
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from harness.cli.options import Json, Kernel, Plugins, Scenarios, Seed, Selectors, Tags
from harness.cli.output import console, print_json
from harness.core.cases import Case
from harness.core.catalog import ENGINES, FAULTS, KERNELS, ORACLES, SITES
from harness.report.console import table
from harness.report.wording import printable, reproduce_case
from harness.run.environment import DEVICES, Environment
from harness.run.planning import Wanted, load, register_plugins
from harness.run.runner import WorkerPool
from harness.scenario.expand import expand
from harness.scenario.json_schema import json_schema
from harness.scenario.matrix import num_points
from harness.scenario.schema import Scenario
from harness.scenario.selection import select, select_scenarios, with_each


def list_(
    selectors: Selectors = None,
    tags: Tags = None,
    cases: Annotated[bool, typer.Option("--cases", help="Print all case ids instead of the tables.")] = False,
    scenarios: Scenarios = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """List scenarios, kernels, faults, oracles and sites.

    With a selector or a tag, only the scenarios that it selects.
    """
    wanted = Wanted(tuple(selectors or ()), tuple(tags or ()), seed=seed, scenarios=scenarios)
    known, is_part = load(wanted), bool(selectors or tags)
    if cases:
        if is_part:
            found = select(known, wanted.selectors, tags=wanted.tags, seed=seed, has_gpu=True)
        else:
            found = [case for scenario in known for case in expand(scenario, seed=seed)]
        ids = [case.id for case in found]
        if json:
            print_json({"cases": ids})
        else:
            # One id a line, for `grep` and `xargs`.
            print(*ids, sep="\n")
        return
    if is_part:
        known = select_scenarios(known, wanted.selectors, tags=wanted.tags)
    tables = {"scenarios": [_scenario_row(scenario) for scenario in known]}
    if not is_part:
        tables |= _other_tables()
    if json:
        print_json(tables)
    else:
        _print_tables(tables)


def _other_tables() -> dict[str, list[dict[str, Any]]]:
    return {
        "kernels": [
            {"name": k.name, "devices": ", ".join(k.devices), "kv": ", ".join(k.kv), "summary": k.summary}
            for k in KERNELS
        ],
        "faults": [{"name": f.name, "ref": f.ref, "summary": f.summary} for f in FAULTS],
        "oracles": [{"name": o.name, "summary": o.summary} for o in ORACLES],
        "sites": [{"name": s.name, "summary": s.summary} for s in SITES],
    }


def _scenario_row(scenario: Scenario) -> dict[str, Any]:
    count = num_points(scenario) if scenario.fuzz is None else scenario.fuzz.examples
    return {
        "name": scenario.name,
        "cases": count,
        "faults": len(scenario.faults),
        "tags": ", ".join(scenario.tags),
        "refs": ", ".join(scenario.refs),
        "summary": scenario.summary,
    }


def _print_tables(tables: dict[str, list[dict[str, Any]]]) -> None:
    screen = console()
    for title, rows in tables.items():
        shown = table(*(rows[0] if rows else ()), no_wrap={"name", "cases", "faults"}, title=title)
        for row in rows:
            shown.add_row(*(str(value) for value in row.values()))
        screen.print(shown)


def show(
    case_id: Annotated[str, typer.Argument(metavar="CASE", help="A case id, or a scenario (its first case).")],
    kernel: Kernel = None,
    plugin: Plugins = None,
    scenarios: Scenarios = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Show one case in full, and explain its terms."""
    kernels = (kernel,) if kernel else ()
    wanted = Wanted((case_id,), kernels=kernels, plugins=tuple(plugin or ()), seed=seed, scenarios=scenarios)
    with WorkerPool(1) as pool:  # A worker starts only if there are plug-ins to describe.
        names = register_plugins(wanted, pool)
    known = load(wanted)
    case = with_each(names, lambda override: select(known, wanted.selectors, seed=seed, override=override))[0]
    # A cell of the susceptibility matrix has no scenario.
    scenario = next((scenario for scenario in known if scenario.name == case.scenario), None)
    if json:
        declared = scenario.model_dump(mode="json", by_alias=True) if scenario else None
        print_json({"case": case.model_dump(mode="json"), "scenario": declared})
    else:
        _print_case(case, scenario, reproduce_case(case.id, None, wanted.reproduction()))


def _print_case(case: Case, scenario: Scenario | None, command: str) -> None:
    screen = console()
    screen.print(case.id, style="bold", soft_wrap=True)
    screen.print(scenario.summary if scenario else "a cell of the matrix of mla-harness susceptibility")
    if scenario and scenario.why:
        screen.print(" ".join(scenario.why.split()))
    op = f" {case.op}" if case.op else ""
    strict = ", indices out of range" if case.poison.strict else ""
    values = {name: jsonlib.dumps(value) for name, value in case.values().items() if name != "op"}
    sites = {name: SITES.get(name).summary for name in case.poison.sites} or {"nothing": ""}
    faults = {
        use.name: f"by {use.caught_by}, blaming {', '.join(use.blames) or 'no site'}; {FAULTS.get(use.name).summary}"
        for use in (scenario.faults if scenario else ())
    }
    _print_block(screen, f"system {case.system}{op}, seed {case.seed}", values)
    _print_block(screen, f"poison {', '.join(case.poison.patterns)} on{strict}", sites)
    _print_block(screen, "oracles", {name: ORACLES.get(name).summary for name in case.oracles})
    _print_block(screen, "faults that must be caught", faults)
    _print_block(screen, "references", dict.fromkeys(case.refs, ""))
    screen.print("\nrun:", command, soft_wrap=True)


def _print_block(screen: Console, title: str, lines: dict[str, str]) -> None:
    if not lines:
        return
    screen.print(f"\n{title}", style="bold", soft_wrap=True)
    grid = Table.grid(Column(no_wrap=True), Column(overflow="fold"), padding=(0, 2))
    for name, text in lines.items():
        grid.add_row(name, text)
    screen.print(Padding(grid, (0, 0, 0, 2)))


def doctor(json: Json = False) -> None:
    """Show what can run on this machine, and why the rest cannot."""
    with WorkerPool(1) as pool:
        environment = pool.start()
        described = pool.describe_kernels()
    kernels = [
        {"kernel": f"{d['op']}/{d['short_name']}", **{device: _answer(d, environment, device) for device in DEVICES}}
        for d in described
    ]
    devices = {device: environment.why_not(device) or "yes" for device in DEVICES}
    if json:
        print_json({"environment": environment.model_dump(mode="json"), "devices": devices, "kernels": kernels})
        return
    screen = console()
    gpus = ", ".join(gpu.name for gpu in environment.gpus)
    facts = environment.model_dump(mode="json", exclude={"engines", "engine_paths"})
    facts |= {engine.name: environment.engines.get(engine.name) for engine in ENGINES}
    facts |= {"gpus": gpus or "none", "cuda": environment.cuda or "none", "cluster": environment.cluster or "none"}
    _print_block(screen, "this machine", {name: "not installed" if v is None else str(v) for name, v in facts.items()})
    _print_block(screen, "devices", devices)
    # The block above says why a device cannot be used at all.
    for device in (name for name, answer in devices.items() if answer == "yes"):
        by_answer: dict[str, list[str]] = {}
        for row in kernels:
            by_answer.setdefault(row[device], []).append(row["kernel"])
        screen.print(f"\nkernels on {device}", style="bold")
        for answer, names in by_answer.items():
            screen.print(Padding(Text(printable(f"{answer}: {', '.join(names)}")), (0, 0, 0, 2)))


def _answer(described: dict[str, Any], environment: Environment, device: str) -> str:
    """`yes`, or why a kernel cannot run on a device: the machine's reason before the kernel's own."""
    if device not in described["devices"]:
        return "not made for it"
    return environment.why_not(device) or described["why_not"][device] or "yes"


def schema() -> None:
    """Print the JSON Schema of scenario files."""
    print_json(json_schema())
