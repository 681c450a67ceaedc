"""`mla-harness susceptibility`: which kernel lets which unwritten memory through, for every kernel that runs here."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.recording import Branch, Commit, History
from harness.cli.run import INTERRUPTED, Device, Out, Seed, Timeout, Workers

if TYPE_CHECKING:
    from rich.console import Console

    from harness.core.kernel_spec import KernelSpec
    from harness.report.susceptibility import Cell


def susceptibility(
    kernel: Annotated[
        list[str] | None, typer.Option("--kernel", help="Only this kernel, short or as op/name; may be repeated.")
    ] = None,
    plugin: Annotated[list[Path] | None, typer.Option("--plugin", help="A Python file with kernels of yours.")] = None,
    device: Device = "auto",
    seed: Seed = 0,
    out: Out = None,
    timeout: Timeout = 60.0,
    workers: Workers = None,
    history: History = None,
    commit: Commit = "",
    branch: Branch = "",
) -> None:
    """Try kernel x site x pattern, declared contracts set aside, and write the table: Markdown, CSV, HTML."""
    from harness.cli.recording import history_file, keep, source_under_test
    from harness.cli.session import Wanted, carry_out, make_jobs, register_plugins, stoppable
    from harness.report import susceptibility as report
    from harness.report.terminal import LiveProgress, console_for
    from harness.report.write import write_reports
    from harness.run.runner import WorkerPool
    from harness.scenario.susceptibility import cases
    from harness.store.run_folder import DEFAULT_RUNS, RunStore

    plugins = tuple(path.resolve() for path in plugin or ())
    wanted = Wanted(device=device, plugins=plugins, seed=seed, timeout_seconds=timeout)
    console = console_for(sys.stdout)
    code = 0
    with WorkerPool(workers) as pool:
        own = register_plugins(wanted, pool)
        jobs = make_jobs(cases(_specs(kernel or (), own), seed=seed), wanted, pool)
        command = shlex.join(["mla-harness", *sys.argv[1:]])
        store = RunStore.create(out or DEFAULT_RUNS, jobs, command=command, options=wanted.reproduction())
        store.note_source(source_under_test(commit, branch, plugins))
        try:
            with stoppable(store), LiveProgress(console, len(jobs)) as live:
                carry_out(store, pool, jobs, live)
        except KeyboardInterrupt:
            pool.close()
            code = INTERRUPTED
    write_reports(store, keep(store, history_file(history)))
    found = report.cells(store)
    paths = report.write(store)
    _print(console, found)
    console.print(f"matrix: {paths[0]}", soft_wrap=True)
    # A susceptible kernel is what the table is there to show; only a harness that could not judge is a failure.
    raise typer.Exit(code or (3 if any(cell.outcome == "error" for cell in found) else 0))


def _specs(asked: Sequence[str], own: Sequence[str]) -> list[KernelSpec]:
    """The kernels to try: those asked for, else those of the plug-ins, else all, where the matrix has their op.

    Raises InputError for a name of --kernel that no kernel has or that adds no cell, and when there is none at all.
    """
    from harness.core.catalog import KERNELS
    from harness.core.errors import InputError
    from harness.scenario.kernel_override import KernelOverride
    from harness.scenario.susceptibility import SITES

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


def _print(console: Console, found: Sequence[Cell]) -> None:
    from rich.table import Table

    from harness.report.susceptibility import LEGEND
    from harness.scenario.susceptibility import PATTERNS

    table = Table("kernel", "KV", "site", *PATTERNS, box=None)
    rows: dict[tuple[str, str, str], dict[str, str]] = {}
    for cell in found:
        if cell.outcome != "skipped":
            site = cell.site + (" *" if cell.is_declared else "")
            rows.setdefault((cell.kernel, cell.kv, site), {})[cell.pattern] = cell.outcome
    for key, row in rows.items():
        table.add_row(*key, *(row.get(pattern, "") for pattern in PATTERNS))
    console.print(table)
    console.print(LEGEND)
    skipped = {cell.kernel: cell.why for cell in found if cell.outcome == "skipped"}
    for name, why in skipped.items():
        console.print(f"skipped {name}: {why}", markup=False, soft_wrap=True)
