"""`list`, `show`, `doctor`, `schema`: what there is, one case in full, what this machine can run, the file format."""

from __future__ import annotations

import json as jsonlib
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.padding import Padding
from rich.table import Table

from harness.cli.options import Json, Scenarios, Seed
from harness.core.cases import Case
from harness.core.catalog import ENGINES, FAULTS, KERNELS, ORACLES, SITES
from harness.report.terminal import console_for
from harness.report.wording import reproduce_case
from harness.run.environment import DEVICES, Environment
from harness.run.planning import Wanted, register_plugins
from harness.run.runner import WorkerPool
from harness.scenario.expand import expand
from harness.scenario.load import load_scenarios
from harness.scenario.matrix import num_points
from harness.scenario.schema import Scenario, json_schema
from harness.scenario.selection import select, with_each

Plugins = Annotated[list[Path] | None, typer.Option("--plugin", help="A Python file with kernels of yours.")]


def list_(
    cases: Annotated[bool, typer.Option("--cases", help="Each case id instead of the tables.")] = False,
    scenarios: Scenarios = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """List scenarios, kernels, faults, oracles and sites."""
    known = load_scenarios(scenarios)
    if cases:
        ids = [case.id for scenario in known for case in expand(scenario, seed=seed)]
        if json:
            _print_json({"cases": ids})
        else:
            # Plain text, one id a line, for `grep` and `xargs`.
            print(*ids, sep="\n")
        return
    tables = {
        "scenarios": [_scenario_row(scenario) for scenario in known],
        "kernels": [
            {"name": k.name, "devices": ", ".join(k.devices), "kv": ", ".join(k.kv), "summary": k.summary}
            for k in KERNELS
        ],
        "faults": [{"name": f.name, "ref": f.ref, "summary": f.summary} for f in FAULTS],
        "oracles": [{"name": o.name, "summary": o.summary} for o in ORACLES],
        "sites": [{"name": s.name, "summary": s.summary} for s in SITES],
    }
    if json:
        _print_json(tables)
    else:
        _print_tables(tables)


def _scenario_row(scenario: Scenario) -> dict[str, Any]:
    count = num_points(scenario) if scenario.fuzz is None else scenario.fuzz.examples
    return {
        "name": scenario.name,
        "cases": count,
        "faults": len(scenario.faults),
        "refs": ", ".join(scenario.refs),
        "summary": scenario.summary,
    }


def _print_tables(tables: dict[str, list[dict[str, Any]]]) -> None:

    console = console_for()
    for title, rows in tables.items():
        table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
        for name in rows[0] if rows else ():
            table.add_column(name, overflow="fold", no_wrap=name in ("name", "cases", "faults"))
        for row in rows:
            table.add_row(*(str(value) for value in row.values()))
        console.print(table)


def show(
    case_id: Annotated[str, typer.Argument(metavar="CASE", help="A case id, or a scenario for its first case.")],
    kernel: Annotated[str | None, typer.Option("--kernel", help="The case with this kernel in its place.")] = None,
    plugin: Plugins = None,
    scenarios: Scenarios = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Show one case in full, with what its words mean."""
    wanted = Wanted(
        kernel=kernel, plugins=tuple(path.resolve() for path in plugin or ()), seed=seed, scenarios=scenarios
    )
    with WorkerPool(1) as pool:  # which starts a worker only where somebody's kernels are to be described
        names = register_plugins(wanted, pool)
    known = load_scenarios(scenarios)
    case = with_each(names, lambda override: select(known, [case_id], seed=seed, override=override))[0]
    # A cell of the susceptibility matrix is a case of no scenario.
    scenario = next((scenario for scenario in known if scenario.name == case.scenario), None)
    if json:
        told = scenario.model_dump(mode="json", by_alias=True) if scenario else None
        _print_json({"case": case.model_dump(mode="json"), "scenario": told})
    else:
        _print_case(case, scenario, reproduce_case(case.id, None, wanted.reproduction()))


def _print_case(case: Case, scenario: Scenario | None, command: str) -> None:
    console = console_for()
    console.print(case.id, style="bold", soft_wrap=True)
    console.print(scenario.summary if scenario else "a cell of the matrix of mla-harness susceptibility")
    if scenario and scenario.why:
        console.print(" ".join(scenario.why.split()))
    op = f" {case.op}" if case.op else ""
    _print_block(console, f"system {case.system}{op}, seed {case.seed}", {
        name: jsonlib.dumps(value) for name, value in case.values().items() if name != "op"
    })  # fmt: skip
    strict = ", indices out of range" if case.poison.strict else ""
    _print_block(console, f"poison {', '.join(case.poison.patterns)} on{strict}",
                 {name: SITES.get(name).summary for name in case.poison.sites} or {"nothing": ""})  # fmt: skip
    _print_block(console, "oracles", {name: ORACLES.get(name).summary for name in case.oracles})
    _print_block(console, "faults that must be caught", {
        use.name: f"by {use.caught_by}, blaming {', '.join(use.blames) or 'no site'}; {FAULTS.get(use.name).summary}"
        for use in (scenario.faults if scenario else ())
    })  # fmt: skip
    _print_block(console, "references", dict.fromkeys(case.refs, ""))
    console.print("\nrun:", command, soft_wrap=True)


def _print_block(console: Any, title: str, lines: dict[str, str]) -> None:
    if not lines:
        return
    console.print(f"\n{title}", style="bold", soft_wrap=True)
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in lines.items():
        table.add_row(name, text)
    console.print(Padding(table, (0, 0, 0, 2)))


def doctor(json: Json = False) -> None:
    """Say what this machine can run, and why not."""
    with WorkerPool(1) as pool:
        environment = pool.start()
        described = pool.describe_kernels()
    kernels = [
        {"kernel": f"{d['op']}/{d['short_name']}", **{device: _answer(d, environment, device) for device in DEVICES}}
        for d in described
    ]
    if json:
        devices = {device: environment.why_not(device) or "yes" for device in DEVICES}
        _print_json({"environment": environment.model_dump(mode="json"), "devices": devices, "kernels": kernels})
        return

    console = console_for()
    gpus = ", ".join(gpu.name for gpu in environment.gpus)
    facts = environment.model_dump(mode="json", exclude={"engines", "engine_paths"})
    facts |= {engine.name: environment.engines.get(engine.name) for engine in ENGINES}
    facts |= {"gpus": gpus or "none", "cuda": environment.cuda or "none"}
    _print_block(console, "this machine", {name: "not installed" if v is None else str(v) for name, v in facts.items()})
    _print_block(console, "devices", {device: environment.why_not(device) or "yes" for device in DEVICES})
    console.print()
    _print_tables({"kernels": kernels})


def _answer(described: dict[str, Any], environment: Environment, device: str) -> str:
    """`yes`, or why a kernel cannot run on a device: the machine's reason before the kernel's own."""
    if device not in described["devices"]:
        return "not made for it"
    return environment.why_not(device) or described["why_not"][device] or "yes"


def schema() -> None:
    """Print the JSON Schema of scenario files."""
    _print_json(json_schema())


def _print_json(value: Any) -> None:
    sys.stdout.write(jsonlib.dumps(value, allow_nan=False, indent=1) + "\n")
