"""`--resume`: a run goes on as it was planned, by the command that began it; whatever else was given is refused."""

from __future__ import annotations

import shlex
from pathlib import Path

import typer

from harness.core.errors import InputError
from harness.store.run_folder import DEFAULT_RUNS, RunStore, find_run

OF_THIS_STRETCH = frozenset((
    "resume", "out", "workers", "executor", "ray_address", "shrink_seconds", "history", "commit", "branch", "json",
))  # fmt: skip
"""What may differ from one stretch of a run to the next: where it goes on, and what is told and kept of it."""


def refuse_new_plan(context: typer.Context) -> None:
    """Raise InputError when the command line of a resumed run holds what only the plan decides.

    What was given counts, whatever its value: `--seed 0` is the default, and may not be what the run has.
    """
    changed = []
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if name in OF_THIS_STRETCH or source is None or source.name != "COMMANDLINE":
            continue
        if parameter.param_type_name != "argument":
            changed.append(parameter.opts[0])
        elif context.params[name]:
            changed.append("a selector")
    if changed:
        raise InputError(f"--resume: continues the run as it was planned; leave out {', '.join(changed)}")


def command_to_resume(store: RunStore) -> str:
    """The command that goes on with a run."""
    return shlex.join(["mla-harness", _kind(store), "--resume", str(store.path)])


def reopened(name: str, out: Path | None, command: str) -> RunStore:
    """The run to go on with. Raises InputError unless `command` (run, selftest or epochs) is the one that began it."""
    store = RunStore.open(find_run(name, out or DEFAULT_RUNS))
    kind = _kind(store)
    if kind != command:
        raise InputError(f"{store.path}: a run of `{kind}`; continue it with: {command_to_resume(store)}")
    return store


def _kind(store: RunStore) -> str:
    if "epochs" in store.plan.options:
        return "epochs"
    return "selftest" if store.plan.is_selftest else "run"
