"""Options that several commands share."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from harness.core.errors import InputError

LOCAL = "local"
"""The default of --executor."""
Selectors = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[SELECTOR]...",
        help="Scenarios, (parts of) case ids, PRs, a YAML file [default: all].",
    ),
]
Tags = Annotated[
    list[str] | None,
    typer.Option(
        "-m",
        metavar="TAG",
        help="Only cases with this tag, or 'not TAG'; may be repeated: any of the tags.",
    ),
]
Device = Annotated[
    str,
    typer.Option(
        "--device", metavar="auto|cpu|cuda", help="Where cases run; auto: on a GPU if possible."
    ),
]
Seed = Annotated[
    int,
    typer.Option(
        "--seed", metavar="N", min=0, max=2**31 - 1, help="Seed of the inputs and of fuzz cases."
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "-n", metavar="N", min=1, max=64, help="Worker processes [default: cores, at most 4]."
    ),
]
WorkersOrHere = Annotated[
    int | None,
    typer.Option(
        "-n", metavar="N", min=0, max=64, help="Workers [default: up to 4]; 0: in this process."
    ),
]
PerGpu = Annotated[
    int,
    typer.Option(
        "--per-gpu",
        metavar="N",
        min=1,
        max=16,
        help="Workers that share each GPU; each has its own context.",
    ),
]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        min=0.1,
        help="Time limit of one case; ten times as much under TRITON_INTERPRET=1.",
    ),
]
Scenarios = Annotated[
    Path | None,
    typer.Option(
        "--scenarios",
        metavar="DIR",
        help="Your folder (with the folders in it) or file of scenarios.",
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on stdout, everything else on stderr.")
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", metavar="DIR", help="Folder of all run directories [default: reports/runs]."
    ),
]
Resume = Annotated[
    str | None,
    typer.Option(
        "--resume", metavar="RUN", help="Continue a run: its directory, its id, or 'latest'."
    ),
]
Fault = Annotated[
    str | None, typer.Option("--fault", metavar="NAME", help="Inject this known bug (see `list`).")
]
Kernel = Annotated[
    str | None,
    typer.Option(
        "--kernel", metavar="NAME", help="Use this kernel in all selected cases with its op."
    ),
]
Kernels = Annotated[
    list[str] | None,
    typer.Option(
        "--kernel",
        metavar="NAME",
        help="Use this kernel in all cases with its op; may be repeated.",
    ),
]
Plugins = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin",
        metavar="FILE",
        resolve_path=True,
        help="Python file with your kernels; may be repeated.",
    ),
]


def seconds(text: str) -> Any:
    """--seconds.

    It has its name here, as typer 0.27.0 takes a metavar of the same letters for it.
    """
    return typer.Option("--seconds", metavar="SECONDS", min=0.0, help=text)


def _imported_first(folder: Path | None) -> Path | None:
    if folder is not None:
        # Imported here only: it takes longer than a page of help.
        from harness.run.environment import import_first

        import_first(folder)
    return folder


EnginePath = Annotated[
    Path | None,
    typer.Option(
        "--engine-path",
        metavar="DIR",
        resolve_path=True,
        callback=_imported_first,
        help="Import engines from here first: your checkout, or a folder of pip --target.",
    ),
]
Executor = Annotated[
    str,
    typer.Option(
        "--executor", metavar="local|ray", help="Run cases on this machine, or on a Ray cluster."
    ),
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        "--ray-address",
        metavar="HOST:PORT|auto",
        help="A running cluster [default: $RAY_ADDRESS, else a local one].",
    ),
]
ServedModel = Annotated[
    str | None, typer.Option(metavar="NAME", help="The model, if the server has several.")
]
NO_HISTORY = "none"


def _folder_of_runs(name: str | None) -> str | None:
    # A folder that does not exist yet is no error: the first run of a machine has no history.
    if name and name != NO_HISTORY and Path(name).is_file():
        raise InputError(
            f"--history {name}: a file; name a folder of runs, such as reports/runs, or"
            f" {NO_HISTORY}"
        )
    return name


History = Annotated[
    str | None,
    typer.Option(
        "--history",
        metavar="DIR|none",
        envvar="MLA_HARNESS_HISTORY",
        callback=_folder_of_runs,
        help="Folder of earlier runs to compare with [default: that of --out].",
    ),
]
Commit = Annotated[
    str,
    typer.Option(
        metavar="SHA", envvar="MLA_HARNESS_COMMIT", help="Commit under test [default: from git]."
    ),
]
Branch = Annotated[
    str,
    typer.Option(
        metavar="NAME", envvar="MLA_HARNESS_BRANCH", help="Branch under test [default: from git]."
    ),
]


def command_line() -> str:
    return shlex.join(["mla-harness", *sys.argv[1:]])
