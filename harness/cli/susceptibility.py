"""`mla-harness susceptibility`: which kernel lets which unwritten memory through, for every kernel that runs here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from harness.cli.options import (
    Branch,
    Commit,
    Device,
    History,
    Out,
    Plugins,
    Seed,
    Timeout,
    Workers,
    command_line,
    resolved,
)
from harness.cli.performing import console, perform
from harness.cli.recording import history_file, source_under_test
from harness.core.catalog import KERNELS
from harness.core.errors import InputError
from harness.core.kernels import KernelSpec
from harness.diagnose.perform import carry_out
from harness.report import susceptibility as report
from harness.report.susceptibility import LEGEND, Cell
from harness.report.terminal import LiveProgress
from harness.run.planning import Planner, Wanted, register_plugins
from harness.run.runner import WorkerPool
from harness.scenario.expand import KernelOverride
from harness.scenario.susceptibility import PATTERNS, SITES, cases
from harness.store.run_folder import DEFAULT_RUNS, RunStore


def susceptibility(
    kernel: Annotated[
        list[str] | None, typer.Option("--kernel", help="Only this kernel, short or as op/name; may be repeated.")
    ] = None,
    plugin: Plugins = None,
    device: Device = "auto",
    seed: Seed = 0,
    out: Out = None,
    timeout: Timeout = 60.0,
    workers: Workers = None,
    history: History = None,
    commit: Commit = "",
    branch: Branch = "",
) -> None:
    """Try each kernel with each site and pattern, and write the table.

    Declared contracts are set aside. The table is written as Markdown, CSV and HTML.
    """
    plugins = resolved(plugin)
    wanted = Wanted(device=device, plugins=plugins, seed=seed, timeout_seconds=timeout)
    screen = console()
    with WorkerPool(workers) as pool:
        own = register_plugins(wanted, pool)
        jobs = Planner(wanted, pool).jobs_of(cases(_specs(kernel or (), own), seed=seed))
        store = RunStore.create(out or DEFAULT_RUNS, jobs, command=command_line(), options=wanted.reproduction())
        store.note_source(source_under_test(commit, branch, plugins))

        def work() -> None:
            with LiveProgress(screen, len(jobs)) as live:
                carry_out(store, pool, live)

        code = perform(store, work, stop=pool.close, tell=lambda: _tell(store, screen), history=history_file(history))
    raise typer.Exit(code)


def _tell(store: RunStore, screen: Console) -> int:
    """Write and print the matrix. It is there to show a susceptible kernel, so only a cell without verdict is bad."""
    found = report.cells(store)
    paths = report.write(store)
    _print(screen, found)
    screen.print(f"matrix: {paths[0]}", soft_wrap=True)
    return 3 if any(cell.outcome == "error" for cell in found) else 0


def _specs(asked: Sequence[str], own: Sequence[str]) -> list[KernelSpec]:
    """The kernels to try: those asked for, else those of the plug-ins, else all, where the matrix has their op.

    Raises InputError for a name of --kernel that no kernel has or that adds no cell, and when there is none at all.
    """
    ops = ", ".join(SITES)
    for name in asked:
        implemented = KernelOverride.named(name).ops
        if not implemented & SITES.keys():
            what = ", ".join(sorted(implemented))
            raise InputError(f"--kernel {name}: op {what} has no site to try; choose a kernel of {ops}")
    names = asked or own
    specs = [s for s in KERNELS if s.op in SITES and (not names or s.short_name in names or s.name in names)]
    if not specs:
        raise InputError(f"--plugin: no kernel of it ({', '.join(own)}) has a site to try; give one of op {ops}")
    return specs


def _print(screen: Console, found: Sequence[Cell]) -> None:

    table = Table("kernel", "KV", "site", *PATTERNS, box=None)
    rows: dict[tuple[str, str, str], dict[str, str]] = {}
    for cell in found:
        if cell.outcome != "skipped":
            site = cell.site + (" *" if cell.is_declared else "")
            rows.setdefault((cell.kernel, cell.kv, site), {})[cell.pattern] = cell.outcome
    for key, row in rows.items():
        table.add_row(*key, *(row.get(pattern, "") for pattern in PATTERNS))
    screen.print(table)
    screen.print(LEGEND)
    skipped = {cell.kernel: cell.why for cell in found if cell.outcome == "skipped"}
    for name, why in skipped.items():
        screen.print(f"skipped {name}: {why}", markup=False, soft_wrap=True)
