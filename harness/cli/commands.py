"""The table of commands. A command's module is imported when it is used, so `--help` imports none."""

from __future__ import annotations

import importlib
from typing import Any

import typer
from typer.core import TyperGroup

CONTEXT = {"help_option_names": ["-h", "--help"]}

COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("run:run", "Run cases, blame failures, write reports."),
    "selftest": ("selftest:selftest", "Inject every known bug; each must be caught."),
    "repro": (
        "repro:repro",
        "Show one upstream bug without and with it, or write a failing case as a script of its own.",
    ),
    "list": ("look:list_", "List scenarios, kernels, faults, oracles and sites."),
    "show": ("look:show", "Show one case in full, with what its words mean."),
    "doctor": ("look:doctor", "Say what this machine can run, and why not."),
    "schema": ("look:schema", "Print the JSON Schema of scenario files."),
    "report": ("report:report", "Render the reports of a run again, and print it."),
    "history": ("history:history", "Follow a scenario or a case from run to run."),
    "compare": ("compare:compare", "Compare two runs; exit code 1 when something fails now that did not."),
    "merge": ("merge:merge", "Put the shards of one run together."),
    "shrink": ("shrink:shrink", "Reduce a failing case to the smallest that fails for the same reason."),
    "cure": ("cure:cure", "Tell whether a proposed fix removes the cause of a failure or hides it."),
    "bench": ("bench:bench", "Measure what the harness itself costs."),
    "susceptibility": (
        "susceptibility:susceptibility",
        "Try each kernel with each site and pattern, and write the table.",
    ),
    "bisect": (
        "bisect:bisect",
        "Run the same scenarios under several installed versions; name the first bad one of each.",
    ),
    "serve-check": (
        "serve_check:serve_check",
        "Check a running server: accuracy by epoch, and whether a repeat gives the same answer.",
    ),
    "epochs": ("epochs:epochs", "Ask the same questions again and again, and judge the accuracy of each epoch."),
    "baseline": ("baseline:app", "Show stored accuracies, or store the accuracy of a run."),
    "canary": ("canary:app", "Canaries: tiny models that measure inference, not ability."),
}
"""Name -> "module of this folder:function or group", and the first line of its help."""


class Commands(TyperGroup):
    """The group of all commands."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command called `cmd_name`, from its module; None for any other name."""
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        found = getattr(importlib.import_module(f"harness.cli.{module}"), name)
        if not isinstance(found, typer.Typer):
            app = typer.Typer(add_completion=False, rich_markup_mode=None, context_settings=CONTEXT)
            app.command(cmd_name)(found)
            found = app
        command = typer.main.get_command(found)
        command.name = cmd_name
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """One line for each command, from the table."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])
