"""`mla-harness susceptibility`: which uninitialised memory changes which outputs of a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from harness.cli import options
from harness.cli.making_runs import history_file, perform, planned, source_under_test
from harness.cli.output import console
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
from harness.store.run_folder import RunStore


def susceptibility(
    kernel: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this kernel, as NAME or OP/NAME; may be repeated.")
    ] = None,
    plugin: options.Plugins = None,
    device: options.Device = "auto",
    seed: options.Seed = 0,
    out: options.Out = None,
    timeout: options.Timeout = 60.0,
    workers: options.Workers = None,
    per_gpu: options.PerGpu = 1,
    history: options.History = None,
    commit: options.Commit = "",
    branch: options.Branch = "",
) -> None:
    """Poison each kernel at each site, and write a table.

    A kernel's declared contract does not excuse it here. The table is written as Markdown, CSV and HTML.
    """
    plugins = tuple(plugin or ())
    wanted = Wanted(device=device, plugins=plugins, seed=seed, timeout_seconds=timeout)
    screen = console()
    with WorkerPool(workers, per_gpu=per_gpu) as pool:
        own = register_plugins(wanted, pool)
        jobs = Planner(wanted, pool).jobs_of(cases(_specs(kernel or (), own), seed=seed))
        store = planned(out, wanted, jobs)
        store.note_source(source_under_test(commit, branch, plugins))

        def work() -> None:
            with LiveProgress(screen, len(jobs)) as live:
                carry_out(store, pool, live)

        code = perform(store, work, stop=pool.close, tell=lambda: _tell(store, screen), history=history_file(history))
    raise typer.Exit(code)


def _tell(store: RunStore, screen: Console) -> int:
    """Write and print the matrix. A susceptible kernel is a result; 3 if a cell has no verdict, 2 if no kernel ran."""
    found = report.cells(store)
    paths = report.write(store)
    _print(screen, found)
    screen.print(f"matrix: {paths[0]}", soft_wrap=True)
    outcomes = {cell.outcome for cell in found}
    return 3 if "error" in outcomes else 2 if outcomes == {"skipped"} else 0


def _specs(requested: Sequence[str], own: Sequence[str]) -> list[KernelSpec]:
    """The kernels to try, with an op of the matrix: the requested ones, else the plug-ins' ones, else all.

    Raises InputError for an unknown kernel, a kernel without a site, or if there is no kernel to try.
    """
    ops = ", ".join(SITES)
    for name in requested:
        implemented = KernelOverride.named(name).ops
        if not implemented & SITES.keys():
            what = ", ".join(sorted(implemented))
            raise InputError(f"--kernel {name}: op {what} has no site to try; choose a kernel of {ops}")
    names = requested or own
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
