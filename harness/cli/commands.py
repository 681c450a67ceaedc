"""The table of commands.

A command's module is imported when it is used, so `--help` imports none.
"""

from __future__ import annotations

import importlib
import math
from collections import Counter
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from harness.core import checkout
from harness.core.errors import InputError

CONTEXT = {"help_option_names": ["-h", "--help"]}

COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("run:run", "Run cases, find the memory to blame for failures, and write reports."),
    "judge": ("judge:judge", "Judge the kernels of a file, which are trusted with nothing."),
    "selftest": ("selftest:selftest", "Inject each known bug, and check that it is caught."),
    "repro": (
        "repro:repro",
        "Show an upstream bug, without and with it; or export a failing case.",
    ),
    "list": ("listing:list_", "List scenarios, kernels, faults, oracles and sites."),
    "show": ("listing:show", "Show one case in full, and explain its terms."),
    "doctor": (
        "doctor:doctor",
        "Show what can run on this machine, why the rest cannot, and what would bring it.",
    ),
    "schema": ("schema:schema", "Print the JSON Schema of scenario files."),
    "report": ("report:report", "Print a stored run, and write its reports again."),
    "coverage": (
        "coverage:coverage",
        "Show which pairs and triples of conditions the calls of a run showed.",
    ),
    "history": ("history:history", "Follow a scenario or a case from run to run."),
    "compare": (
        "compare:compare",
        (
            "Compare two runs; exit code 1 if something fails that did not fail before, or no"
            " longer runs."
        ),
    ),
    "merge": ("merge:merge", "Merge the shards of one run."),
    "shrink": ("shrink:shrink", "Find the smallest case that fails for the same reason."),
    "survey": (
        "survey:survey",
        "Try options of an engine together, as released, and find which lose answers.",
    ),
    "bisect": (
        "bisect:bisect",
        "Run the same scenarios under several versions, and find the first bad one.",
    ),
    "serve-check": (
        "serve_check:serve_check",
        "Check how a running server keeps its state, by a script of requests.",
    ),
    "serve": (
        "serve:serve",
        "Start a server of any language with filled memory, for serve-check and epochs.",
    ),
    "epochs": (
        "epochs:epochs",
        "Ask a model the same questions several times, and judge each epoch.",
    ),
    "baseline": ("baseline:app", "Show stored accuracies, or store the accuracy of a run."),
} | checkout.commands()
"""Name -> "module:function or group", and the first line of its help.

A module without a dot is one of this folder; a dotted one is of the checkout.
"""


class Command(TyperCommand):
    """A command that refuses infinity, and an option given twice that has one value: the last would
    win in silence.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As typer parses. Raises InputError for a repeated option and for infinity."""
        *_, given = self.make_parser(ctx).parse_args(list(args))
        for parameter, times in Counter(given).items():
            is_flag = getattr(parameter, "is_flag", False)
            if (
                times > 1
                and parameter.param_type_name == "option"
                and not (parameter.multiple or is_flag)
            ):
                raise InputError(
                    f"{parameter.opts[0]}: given {times} times, takes one value; give it once"
                )
        left = super().parse_args(ctx, args)
        if unbounded := [
            parameter.opts[0] for parameter in given if ctx.params.get(parameter.name) == math.inf
        ]:
            raise InputError(f"{unbounded[0]}: infinity is no number here; give a finite one")
        return left


def new_app(**options: Any) -> typer.Typer:
    """A typer application that looks like the other commands."""
    return typer.Typer(
        add_completion=False, rich_markup_mode=None, context_settings=CONTEXT, **options
    )


class Commands(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command called `cmd_name`, from its module; None for any other name."""
        if cmd_name not in COMMANDS:
            return None
        place = COMMANDS[cmd_name][0]
        module, _, name = place.partition(":")
        if "." in module:
            app = found = checkout.attribute_of(place)
        else:
            app = found = getattr(importlib.import_module(f"harness.cli.{module}"), name)
        if not isinstance(found, typer.Typer):
            # typer makes commands of applications alone, so a single function gets one.
            app = new_app()
            app.command(cmd_name, cls=Command)(found)
        command = typer.main.get_command(app)
        command.name = cmd_name
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])
