"""`mla-harness bench`: cases a second, the cost of poison and of a replay, measured in a process of its own."""

from __future__ import annotations

import json as jsonlib
import sys
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from harness.cli.options import Json, Scenarios, Seed, Selectors, Tag
from harness.report.terminal import console_for
from harness.run.child import ONE_THREAD, ask
from harness.run.requests import MeasureCases
from harness.scenario.load import load_scenarios
from harness.scenario.selection import select


def bench(
    selectors: Selectors = None,
    tag: Tag = None,
    seed: Seed = 0,
    repeats: Annotated[int, typer.Option("--repeats", min=1, max=100, help="Timed runs of each case.")] = 3,
    scenarios: Scenarios = None,
    json: Json = False,
) -> None:
    """Measure what the harness itself costs."""
    known = load_scenarios(scenarios)
    cases = select(known, tuple(selectors or ()), tag=tag, seed=seed)
    if not selectors and tag is None:
        # Drawn cases and the thousands of a GPU's matrix would outweigh the written ones in the median; a model that
        # answers questions is no measure of the harness.
        wanted = {one.name for one in known if one.fuzz is None and one.device == "any"}
        cases = [case for case in cases if case.scenario in wanted and case.kind.shows_launches]
    request = MeasureCases(cases=tuple(cases), repeats=repeats)
    answer = ask("harness.judge.bench", request, name="bench: the measuring process", environ=ONE_THREAD)
    if json:
        sys.stdout.write(jsonlib.dumps(answer, allow_nan=False, indent=1) + "\n")
    else:
        _print(answer)


def _print(answer: dict[str, Any]) -> None:

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in ("measured", "median", "worst", "cases", "worst case"):
        table.add_column(column, overflow="fold")
    table.add_row("cases a second, one worker", f"{answer['cases_per_second']:.1f}", "", str(answer["num_cases"]), "")
    for name, title in (("poison", "poisoned / unpoisoned"), ("replay", "recorded replay / eager")):
        ratio = answer[name]
        if ratio["num_cases"]:
            table.add_row(
                title, f"{ratio['median']:.2f}", f"{ratio['worst']:.2f}", str(ratio["num_cases"]), ratio["worst_case"]
            )
        else:
            table.add_row(title, "-", "-", "0", "no selected case has it")
    console = console_for()
    console.print(table)
    for skipped in answer["skipped"]:
        console.print("not measured:", skipped, style="dim", soft_wrap=True)
