"""The entry point: parse the command line, and turn errors into one line and an exit code."""

from __future__ import annotations

import errno
import gc
import os
import sys
import traceback
from typing import Annotated

import typer
from torch_poison.errors import PoisonError

from harness.cli.commands import CONTEXT, Commands
from harness.core import unreadable
from harness.core.errors import INTERRUPTED, HarnessError, InputError, explained_writes
from harness.core.files import keep_for_reader

EXIT_CODES = (
    "Exit codes: 0 all good; 1 a regression or a fault not caught; 2 bad input; 3 the harness"
    " itself failed; 130 interrupted."
)

MANY_OBJECTS = 400_000
"""New objects before Python looks for garbage.

Imports and scenarios make as many, and all of them stay.
"""

MOST_LETTERS = 2000
"""Letters of an error.

A path may be longer than a file system takes; the end of the line says how to mend it.
"""
PATH_ERRORS = (
    *(errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY),
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENXIO),
)
"""Errors of the system about a path that the user gave: no fault of this program."""

app = typer.Typer(
    name="mla-harness",
    cls=Commands,
    help=(
        "Finds memory bugs in MLA serving: poisons uninitialised memory, checks outputs, names the"
        " memory to blame."
    ),
    epilog=EXIT_CODES,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=CONTEXT,
)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        print(f"mla-harness {installed_version()}")
        raise typer.Exit(0)
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(0)


def installed_version() -> str:
    """The version of this package, or "from a checkout"."""
    # Imported here only: a page of help must be instant.
    import importlib.metadata

    try:
        return importlib.metadata.version("mla-harness")
    except importlib.metadata.PackageNotFoundError:
        return "from a checkout"


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    _open_closed_streams()
    gc.set_threshold(MANY_OBJECTS)
    code = exit_code_of(sys.argv[1:] if arguments is None else arguments)
    try:
        sys.stdout.flush()
    except OSError:
        # What cannot be printed goes nowhere: Python would end with exit code 120.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _open_closed_streams() -> None:
    """Let a standard stream that the shell has closed, as `>&-` does, lead to nothing.

    Otherwise the next file that is opened gets its number, and what a library prints goes into this
    file.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The lowest free number, so that of the stream.
            handle = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(handle, True)
            setattr(sys, name, os.fdopen(handle, mode))


def exit_code_of(arguments: list[str]) -> int:
    """Run one command line and return its exit code.

    An error is printed as one line on standard error.

    After something was left out that could not be read there is no 0: it may be a failure.
    """
    unreadable.forget()
    code = _run(arguments)
    warnings = unreadable.warnings()
    for warning in warnings:
        _print_error(f"warning: {warning}")
    return code or (InputError.exit_code if warnings else 0)


def _run(arguments: list[str]) -> int:
    try:
        with explained_writes():
            code = app(args=arguments, standalone_mode=False)
            sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except HarnessError as error:
        return _refuse(str(error), error.exit_code)
    except PoisonError as error:
        return _refuse(str(error), HarnessError.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return _refuse("interrupted", INTERRUPTED)
    except (BrokenPipeError, SystemExit):
        # The reader of the output (`| head`) ended, for which click exits. That is no error.
        return 0
    except Exception as error:
        if isinstance(error, OSError) and (answer := _of_the_system(error)):
            return _refuse(*answer)
        # A usage error is recognized by its method: older typer imports click, and newer typer has
        # a copy of it.
        if hasattr(error, "format_message"):
            context = getattr(error, "ctx", None)
            command = (
                context.command_path.removeprefix(context.find_root().info_name) if context else ""
            )
            return _refuse(f"{error.format_message()} (see mla-harness{command} --help)", 2)
        where = keep_for_reader(traceback.format_exc(), "traceback")
        return _refuse(f"{type(error).__name__}: {error}; traceback in {where}", 3)


def _of_the_system(error: OSError) -> tuple[str, int] | None:
    """The sentence and the exit code for a path that cannot be used, or an output; None for any
    other error.
    """
    path = error.filename2 or error.filename
    if path is not None and error.errno in PATH_ERRORS:
        return f"{path}: {error.strerror}; give another path", InputError.exit_code
    if path is None and error.errno in (errno.EBADF, errno.EIO):
        return f"the output: {error.strerror}; give another one", HarnessError.exit_code
    return None


def _refuse(sentence: str, code: int) -> int:
    _print_error(sentence)
    return code


def _print_error(sentence: str) -> None:
    # Imported for an error only: a page of help must be instant.
    from harness.report.wording import printable

    line = printable(" ".join(sentence.split()))
    if len(line) > MOST_LETTERS:
        line = f"{line[: MOST_LETTERS // 2]} … {line[-MOST_LETTERS // 2 :]}"
    print(f"mla-harness: {line}", file=sys.stderr)


if __name__ == "__main__":
    main()
