"""Options of a command as one record: a dataclass whose fields are the parameters that typer
reads.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import typer

from harness.cli import shared_options
from harness.run.planning import Wanted
from harness.store.run_folder import DEFAULT_RUNS

OptionsT = TypeVar("OptionsT")


@dataclass(frozen=True, kw_only=True)
class Printing:
    """Options of each command with a result that a program may read."""

    json: shared_options.Json = False


@dataclass(frozen=True, kw_only=True)
class RunningCases(Printing):
    """Options of each command that runs cases."""

    device: shared_options.Device = "auto"
    seed: shared_options.Seed = 0
    timeout: shared_options.Timeout = 60.0
    workers: shared_options.Workers = None
    scenarios: shared_options.Scenarios = None

    def wanted(self, **more: Any) -> Wanted:
        """What to run; `more` are further fields of :class:`Wanted`."""
        return Wanted(
            device=self.device,
            seed=self.seed,
            timeout_seconds=self.timeout,
            scenarios=self.scenarios,
            **more,
        )


@dataclass(frozen=True, kw_only=True)
class LeavingRuns(Printing):
    """Options of each command that leaves a run folder."""

    out: shared_options.Out = None
    commit: shared_options.Commit = ""
    branch: shared_options.Branch = ""

    @property
    def root(self) -> Path:
        """The folder of all run folders."""
        return self.out or DEFAULT_RUNS


@dataclass(frozen=True, kw_only=True)
class MakingRuns(RunningCases, LeavingRuns):
    """Options of each command that plans cases, runs them, and leaves a run folder."""

    selectors: shared_options.Selectors = None
    tags: shared_options.Tags = None
    resume: shared_options.Resume = None
    per_gpu: shared_options.PerGpu = 1
    executor: shared_options.Executor = shared_options.LOCAL
    ray_address: shared_options.RayAddress = None

    def wanted(self, **more: Any) -> Wanted:
        """What to run; `more` are further fields of :class:`Wanted`."""
        return super().wanted(
            selectors=tuple(self.selectors or ()), tags=tuple(self.tags or ()), **more
        )


def with_options(
    record: type[OptionsT],
) -> Callable[[Callable[[typer.Context, OptionsT], None]], Callable[..., None]]:
    """Give a command of a context and a `record` typer's parameters for the record's fields, its
    own first.
    """
    hints = get_type_hints(record, include_extras=True)
    hints["context"] = typer.Context
    kind = inspect.Parameter.KEYWORD_ONLY
    empty = inspect.Parameter.empty
    given = {one.name: one.default for one in fields(record)}  # type: ignore[arg-type]
    # typer lists options in this order: those of the command itself first.
    names = [
        name
        for owner in record.__mro__
        for name in vars(owner).get("__annotations__", ())
        if name in given
    ]
    defaults = {"context": empty} | {
        name: empty if given[name] is MISSING else given[name] for name in names
    }
    options = [
        inspect.Parameter(name, kind, default=value, annotation=hints[name])
        for name, value in defaults.items()
    ]

    def wrap(command: Callable[[typer.Context, OptionsT], None]) -> Callable[..., None]:
        @wraps(command)
        def call(context: typer.Context, **given: Any) -> None:
            command(context, record(**given))

        del call.__wrapped__  # Typer would follow it to the record
        call.__annotations__ = {one.name: one.annotation for one in options}
        call.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
        return call

    return wrap
