"""`mla-harness list` and `show`."""

from __future__ import annotations

import json as jsonlib
from typing import Annotated, Any

import typer

from harness.cli.output import console, print_block, print_json
from harness.cli.shared_options import Json, Kernel, Plugins, Scenarios, Seed, Selectors, Tags
from harness.core.cases import Case
from harness.core.catalog import FAULTS, KERNELS, ORACLES, SITES
from harness.core.fault_outcomes import declared_blame
from harness.report.console import columns
from harness.report.wording import reproduce_case
from harness.run.planning import Wanted, load, register_plugins
from harness.scenario.expand import expand
from harness.scenario.matrix import num_points
from harness.scenario.schema import Scenario
from harness.scenario.selection import select, select_scenarios, with_each


def list_(
    selectors: Selectors = None,
    tags: Tags = None,
    cases: Annotated[
        bool, typer.Option("--cases", help="Print all case ids instead of the tables.")
    ] = False,
    plugin: Plugins = None,
    scenarios: Scenarios = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """List scenarios, kernels, faults, oracles and sites.

    With a selector or a tag, only the scenarios that it selects.
    """
    plugins = tuple(plugin or ())
    wanted = Wanted(
        tuple(selectors or ()), tuple(tags or ()), plugins=plugins, seed=seed, scenarios=scenarios
    )
    _register(wanted)
    # A table has no cases, and those that come with the harness are checked by its tests: a list is
    # instant.
    known = load(wanted, whole=lambda name: cases)
    is_part = bool(selectors or tags)
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
        return
    # Hundreds of rows: a table of rich takes as long as all the rest of the command.
    for title, rows in tables.items():
        typer.secho(f"\n{title}", bold=True)
        print(*columns(rows), sep="\n")


def _other_tables() -> dict[str, list[dict[str, Any]]]:
    kernels = [(k.name, ", ".join(k.devices), ", ".join(k.kv), k.summary) for k in KERNELS]
    return {
        "kernels": [
            dict(zip(("name", "devices", "kv", "summary"), kernel, strict=True))
            for kernel in kernels
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


def show(
    case_id: Annotated[
        str, typer.Argument(metavar="CASE", help="A case id, or a scenario (its first case).")
    ],
    kernel: Kernel = None,
    plugin: Plugins = None,
    scenarios: Scenarios = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Show one case in full, and explain its terms."""
    kernels = (kernel,) if kernel else ()
    wanted = Wanted(
        (case_id,), kernels=kernels, plugins=tuple(plugin or ()), seed=seed, scenarios=scenarios
    )
    names = _register(wanted)
    name = case_id.partition("[")[0]
    known = load(wanted, whole=lambda found: found == name, only=name)
    case = with_each(
        names, lambda override: select(known, wanted.selectors, seed=seed, override=override)
    )[0]
    # A cell of the susceptibility matrix has no scenario.
    scenario = next((scenario for scenario in known if scenario.name == case.scenario), None)
    if json:
        declared = scenario.model_dump(mode="json", by_alias=True) if scenario else None
        print_json({"case": case.model_dump(mode="json"), "scenario": declared})
    else:
        _print_case(case, scenario, reproduce_case(case.id, None, wanted.reproduction()))


def _register(wanted: Wanted) -> list[str]:
    """The names of the kernels to judge; a worker describes the kernels of plug-ins."""
    if not wanted.plugins and not wanted.kernels:
        return []
    # A list without plug-ins is instant.
    from harness.run.runner import WorkerPool

    with WorkerPool(1) as pool:
        return register_plugins(wanted, pool)


def _print_case(case: Case, scenario: Scenario | None, command: str) -> None:
    screen = console()
    screen.print(case.id, style="bold", soft_wrap=True)
    screen.print(scenario.summary if scenario else "a cell of mla-harness run susceptibility")
    if scenario and scenario.why:
        screen.print(" ".join(scenario.why.split()))
    op = f" {case.op}" if case.op else ""
    strict = ", indices out of range" if case.poison.strict else ""
    values = {name: jsonlib.dumps(value) for name, value in case.values().items() if name != "op"}
    sites = {name: SITES.get(name).summary for name in case.poison.sites} or {"nothing": ""}
    faults = {
        use.name: (
            f"by {' or '.join(use.caught_by)}, blaming"
            f" {declared_blame(use.blames, use.may_blame)}; " + FAULTS.get(use.name).summary
        )
        for use in (scenario.faults if scenario else ())
    }
    print_block(screen, f"system {case.system}{op}, seed {case.seed}", values)
    print_block(screen, f"poison {', '.join(case.poison.patterns)} on{strict}", sites)
    print_block(screen, "oracles", {name: ORACLES.get(name).summary for name in case.oracles})
    print_block(screen, "faults that must be caught", faults)
    print_block(screen, "references", dict.fromkeys(case.refs, ""))
    screen.print("\nrun:", command, soft_wrap=True)
