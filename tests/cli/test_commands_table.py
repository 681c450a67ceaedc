"""The table of commands says what the commands say of themselves, and loads none of them for `--help`."""

from __future__ import annotations

import importlib
import subprocess
import sys
from typing import get_type_hints

import pytest
import typer
from typer.models import OptionInfo

from harness.cli.commands import COMMANDS, Commands


@pytest.mark.parametrize("name", COMMANDS)
def test_the_line_of_help_is_the_first_of_the_command_itself(name: str) -> None:
    group = Commands(name="mla-harness")
    command = group.get_command(typer.Context(typer.main.get_command(typer.Typer(callback=lambda: None))), name)
    first = " ".join((command.help or "").partition("\n\n")[0].split())
    assert first == COMMANDS[name][1]


def test_help_of_the_whole_loads_neither_torch_nor_pydantic() -> None:
    code = (
        "import sys\nfrom harness.cli.main import exit_code_of\nexit_code_of(['--help'])\n"
        "sys.exit(','.join({'torch', 'pydantic', 'pandas', 'rich'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_an_option_with_a_metavar_like_its_name_says_its_name(name: str) -> None:
    """Without it, typer 0.27 makes `--PYTHON` of `python: Option(metavar="PYTHON")`."""
    module, _, function = COMMANDS[name][0].partition(":")
    found = getattr(importlib.import_module(f"harness.cli.{module}"), function)
    commands = [one.callback for one in found.registered_commands] if isinstance(found, typer.Typer) else [found]
    for command in commands:
        for parameter, hint in get_type_hints(command, include_extras=True).items():
            for option in getattr(hint, "__metadata__", ()):
                if isinstance(option, OptionInfo) and (option.metavar or "").lower() == parameter:
                    # In `Annotated` the first name is in the place of the default.
                    assert str(option.default).startswith("-"), f"{name}: --{parameter}"
