"""`mla-harness serve --poison-malloc -- COMMAND`: start a server whose malloc hands out filled
memory.
"""

from __future__ import annotations

import os
import shutil
from typing import Annotated

import typer

from harness.core.errors import InputError
from harness.core.files import CACHE
from harness.run.poison_malloc import environment


def serve(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND...", help="The program and its arguments."),
    ] = None,
    poison_malloc: Annotated[
        bool, typer.Option("--poison-malloc", help="Fill what malloc hands out to it.")
    ] = False,
    byte: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, max=255, help="With what: 255 is NaN in every type of floats."
        ),
    ] = 255,
) -> None:
    """Start a server, of any language, whose malloc hands out filled memory.

    Then ask it with `epochs` and `serve-check`: a server that reads memory before it writes to it
    gives other answers, or NaN. Its process takes the place of this one. At its end a line says how
    much was filled. Two runs with different bytes must give the same answers.
    """
    if not command:
        raise InputError("serve: no command; write it behind --, such as -- llama-server -m FILE")
    if not poison_malloc:
        raise InputError("serve: say what is done to the command: --poison-malloc")
    program = shutil.which(command[0])
    if program is None:
        raise InputError(f"{command[0]}: no such program")
    os.execve(program, command, environment(byte, CACHE.expanduser(), os.environ))
