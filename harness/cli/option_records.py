"""Options of a command as one record: a dataclass whose fields are the parameters that typer reads."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import typer

from harness.cli import shared_options
from harness.run.planning import Wanted
from harness.store.run_folder import DEFAULT_RUNS

OptionsT = TypeVar("OptionsT", bound="MakingRuns")


@dataclass(frozen=True, kw_only=True)
class MakingRuns:
    """Options of each command that plans cases, runs them, and leaves a run folder."""

    selectors: shared_options.Selectors = None
    tags: shared_options.Tags = None
    device: shared_options.Device = "auto"
    seed: shared_options.Seed = 0
    out: shared_options.Out = None
    resume: shared_options.Resume = None
    timeout: shared_options.Timeout = 60.0
    workers: shared_options.Workers = None
    per_gpu: shared_options.PerGpu = 1
    executor: shared_options.Executor = shared_options.LOCAL
    ray_address: shared_options.RayAddress = None
    scenarios: shared_options.Scenarios = None
    exhaustive: shared_options.Exhaustive = False
    commit: shared_options.Commit = ""
    branch: shared_options.Branch = ""
    json: shared_options.Json = False

    @property
    def root(self) -> Path:
        """The folder of all run folders."""
        return self.out or DEFAULT_RUNS

    def wanted(self, **more: Any) -> Wanted:
        """What to run; `more` are further fields of :class:`Wanted`."""
        names: dict[str, Any] = {
            "selectors": tuple(self.selectors or ()),
            "tags": tuple(self.tags or ()),
            "device": self.device,
        }
        more |= {"seed": self.seed, "timeout_seconds": self.timeout, "scenarios": self.scenarios}
        return Wanted(**names, **more)


def with_options(record: type[OptionsT]) -> Callable[[Callable[[typer.Context, OptionsT], None]], Callable[..., None]]:
    """Give a command of a context and a `record` the parameters that typer makes of the record's fields."""
    hints = get_type_hints(record, include_extras=True)
    hints["context"], kind = typer.Context, inspect.Parameter.KEYWORD_ONLY
    defaults = {"context": inspect.Parameter.empty} | {field.name: field.default for field in fields(record)}
    options = [inspect.Parameter(name, kind, default=value, annotation=hints[name]) for name, value in defaults.items()]

    def wrap(command: Callable[[typer.Context, OptionsT], None]) -> Callable[..., None]:
        @wraps(command)
        def call(context: typer.Context, **given: Any) -> None:
            command(context, record(**given))

        del call.__wrapped__  # Typer would follow it to the record
        call.__annotations__ = {one.name: one.annotation for one in options}
        call.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
        return call

    return wrap
