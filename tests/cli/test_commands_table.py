"""The table of commands says what the commands say of themselves, and loads none of them for
`--help`.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import typer

from harness.cli.commands import COMMANDS, Commands


def _command(name: str) -> Any:
    """The command as typer makes it from its function."""
    context = typer.Context(typer.main.get_command(typer.Typer(callback=lambda: None)))
    return Commands(name="mla-harness").get_command(context, name)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_line_of_help_is_the_first_of_the_command_itself(name: str) -> None:
    command = _command(name)
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
def test_long_options_are_lower_case(name: str) -> None:
    """typer 0.27 makes `--PYTHON` of `python: Option(metavar="PYTHON")`."""
    command = _command(name)
    commands = list(command.commands.values()) if hasattr(command, "commands") else [command]
    options = [
        option
        for one in commands
        for parameter in one.get_params(typer.Context(one))
        for option in parameter.opts
    ]
    assert (
        "--help" in options
        and [one for one in options if one.startswith("--") and one != one.lower()] == []
    )
