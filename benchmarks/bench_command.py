"""`mla-harness bench`: cases a second, and the costs of poison and of a replay, measured in a child
process.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from harness.cli.output import console, print_json
from harness.cli.shared_options import Json, Scenarios, Seed, Selectors, Tags
from harness.core.cases import Case
from harness.core.checkout import on_path
from harness.core.errors import InputError
from harness.core.params import Record
from harness.report.console import table
from harness.report.progress import Waiting
from harness.report.wording import num
from harness.run.child import ONE_THREAD, ask
from harness.run.planning import Wanted, load
from harness.scenario.selection import select


class MeasureCases(Record):
    """For `harness_cost.py`: cases to time, each `repeats` times."""

    cases: tuple[Case, ...]
    repeats: int


def bench(
    selectors: Selectors = None,
    tags: Tags = None,
    seed: Seed = 0,
    repeats: Annotated[
        int, typer.Option(metavar="N", min=1, max=100, help="Timed runs of each case.")
    ] = 3,
    scenarios: Scenarios = None,
    json: Json = False,
) -> None:
    """Measure the cost of the harness itself."""
    wanted = Wanted(tuple(selectors or ()), tuple(tags or ()), seed=seed, scenarios=scenarios)
    known = load(wanted)
    cases = select(known, wanted.selectors, tags=wanted.tags, seed=seed)
    if not selectors and not tags:
        # Drawn cases and the thousands of cases for GPUs would dominate the median. The time of a
        # model that answers questions is not the harness's.
        written = {one.name for one in known if one.fuzz is None and one.device == "any"}
        cases = [case for case in cases if case.scenario in written and case.kind.shows_launches]
    request = MeasureCases(cases=tuple(cases), repeats=repeats)
    with Waiting(console(json), f"measuring {num(len(cases), 'case')}"):
        environ = ONE_THREAD | on_path(Path(__file__).parent)
        answer = ask("harness_cost", request, name="bench: the measuring process", environ=environ)
    if json:
        print_json(answer)
    else:
        _print(answer)
    if not answer["num_cases"]:
        raise InputError("bench: no selected case was measured; see the reasons above")


def _print(answer: dict[str, Any]) -> None:
    shown = table("measured", "median", "worst", "cases", "worst case")
    shown.add_row(
        "cases a second, one worker",
        f"{answer['cases_per_second']:.1f}",
        "",
        str(answer["num_cases"]),
        "",
    )
    titles = {
        "poison": "poisoned / unpoisoned",
        "replay": "recorded replay / eager",
        "recorder": "conditions read / not",
    }
    for name, title in titles.items():
        ratio = answer[name]
        if ratio["num_cases"]:
            median, worst = f"{ratio['median']:.2f}", f"{ratio['worst']:.2f}"
            shown.add_row(title, median, worst, str(ratio["num_cases"]), ratio["worst_case"])
        else:
            shown.add_row(title, "-", "-", "0", "no selected case has it")
    screen = console()
    screen.print(shown)
    for skipped in answer["skipped"]:
        screen.print("not measured:", skipped, style="dim", soft_wrap=True)
