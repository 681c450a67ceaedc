"""`mla-harness coverage`: which conditions the calls of a run showed, in pairs and triples."""

from __future__ import annotations

from itertools import chain, islice
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from harness.cli.output import console, print_json
from harness.cli.shared_options import Json, Out
from harness.core.conditions.model import words
from harness.core.conditions.table import SPACES
from harness.core.errors import InputError
from harness.report.console import say, table
from harness.report.progress import Waiting
from harness.report.run_view import RunView
from harness.report.wording import num
from harness.store.coverage import EVERY_KERNEL, STRENGTHS, Coverage
from harness.store.run_folder import DEFAULT_RUNS, RunStore, find_run

MAX_UNMET = 20
MAX_REFUSED = 4
MAX_WORDS = 300


def coverage(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN] [OP]", help="A run, else the latest; an op shows its details."
        ),
    ] = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Show which pairs and triples of conditions the calls of a run showed."""
    # An op and a run are told apart by the name alone.
    ops = [name for name in names or () if name in SPACES]
    runs = [name for name in names or () if name not in SPACES]
    if len(ops) > 1 or len(runs) > 1:
        raise InputError(f"coverage: give one run and one op of {', '.join(SPACES)}")
    store = RunStore.open(
        find_run(runs[0] if runs else "latest", Path(out) if out else DEFAULT_RUNS)
    )
    with Waiting(console(as_json=True), "counting the combinations"):
        view = RunView(store)
        found = [one for one in view.coverages if not ops or one.op in ops]
    if not found:
        raise InputError(
            f"coverage: no call of {', '.join(ops or SPACES)} in {view.path}, or its classes were"
            " others"
        )
    if json:
        found_in = {"run_id": view.plan.run_id, "not_run": view.num_not_run}
        print_json(found_in | {"coverage": [_object(one) for one in found]})
        return
    screen = console()
    shown = table("op", "kernel", *STRENGTHS.values())
    for one in found:
        counts = [
            f"{one.share(n)} ({met:,} of {every:,})"
            for n in STRENGTHS
            for met, every in [one.shown.counts(n)]
        ]
        shown.add_row(one.op, one.kernel.partition("/")[2] or one.kernel, *counts)
    screen.print(shown)
    if view.num_not_run:
        say(
            screen,
            f"{num(view.num_not_run, 'case')} not run: what they would have shown is missing",
        )
    for one in found:
        if one.kernel == EVERY_KERNEL:
            if ops:
                _details(screen, one)
            continue
        for why, pairs in one.unmet_pairs().items():
            listed = _listed([*map(words, pairs)], MAX_UNMET if ops else MAX_REFUSED)
            say(
                screen,
                f"{one.kernel}: {num(len(pairs), 'pair')} not shown: {why[:MAX_WORDS]}: {listed}",
            )


def _details(screen: Console, one: Coverage) -> None:
    """Print the classes, the unmet pairs and some unmet triples, and what is not allowed."""
    for dimension in one.shown.space.dimensions:
        say(screen, f"{dimension.name}: {dimension.summary}: {' | '.join(dimension.classes)}")
    for strength, name in list(STRENGTHS.items())[1:]:
        met, every = one.shown.counts(strength)
        say(screen, f"{name} not shown: {every - met:,}")
        for combination in islice(one.shown.unmet(strength), MAX_UNMET):
            say(screen, words(combination), indent="  ")
    for why, refused in one.refusals().items():
        say(screen, f"not allowed: {why}: {_listed(refused, MAX_REFUSED)}")


def _listed(found: list[str], most: int) -> str:
    return "; ".join(found[:most]) + (
        f", and {len(found) - most} more" if len(found) > most else ""
    )


def _object(one: Coverage) -> dict[str, object]:
    counts = {name: one.shown.counts(strength) for strength, name in STRENGTHS.items()}
    by_reason = {why: [dict(pair) for pair in pairs] for why, pairs in one.unmet_pairs().items()}
    unmet = {"unmet_pairs": [*chain(*by_reason.values())], "unmet_by_reason": by_reason}
    return {"op": one.op, "kernel": one.kernel, **counts, **unmet, "not_allowed": one.refusals()}
