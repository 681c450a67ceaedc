"""Options that several commands share."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

Selectors = Annotated[
    list[str] | None, typer.Argument(metavar="[SELECTOR]...", help="A scenario, a case id, a PR number.")
]
Tag = Annotated[str | None, typer.Option("-m", metavar="TAG", help="Only cases with this tag, or 'not TAG'.")]
Device = Annotated[str, typer.Option("--device", metavar="auto|cpu|cuda", help="Where the cases run.")]
Seed = Annotated[int, typer.Option("--seed", min=0, max=2**31 - 1, help="Seed of inputs and of drawn cases.")]
Workers = Annotated[int | None, typer.Option("-n", min=1, max=64, help="Worker processes; default: cores, at most 4.")]
Timeout = Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds that one case may take.")]
Scenarios = Annotated[Path | None, typer.Option("--scenarios", metavar="DIR", help="Another folder of scenarios.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, everything else on stderr.")]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Where run directories are made [reports/runs].")
]
Resume = Annotated[
    str | None, typer.Option("--resume", metavar="RUN", help="Continue a run: its directory, id or 'latest'.")
]
Fault = Annotated[str | None, typer.Option("--fault", metavar="NAME", help="Inject this known bug.")]
Kernel = Annotated[str | None, typer.Option("--kernel", help="Judge this kernel wherever its op is used.")]
Plugins = Annotated[
    list[Path] | None, typer.Option("--plugin", resolve_path=True, help="A Python file with kernels of yours.")
]
Executor = Annotated[
    str, typer.Option("--executor", metavar="local|ray", help="Where cases run: here, or on a Ray cluster.")
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        "--ray-address", metavar="HOST:PORT|auto", help="A running cluster [$RAY_ADDRESS; else one on this machine]."
    ),
]
History = Annotated[
    str | None,
    typer.Option(
        "--history",
        metavar="FILE|none",
        envvar="MLA_HARNESS_HISTORY",
        show_envvar=True,
        help="The results of all runs [reports/history.sqlite].",
    ),
]
Commit = Annotated[
    str,
    typer.Option(
        "--commit", metavar="SHA", envvar="MLA_HARNESS_COMMIT", show_envvar=True, help="The code under test [git's]."
    ),
]
Branch = Annotated[
    str,
    typer.Option("--branch", metavar="NAME", envvar="MLA_HARNESS_BRANCH", show_envvar=True, help="Its branch [git's]."),
]


def command_line() -> str:
    """This command as a user types it."""
    return shlex.join(["mla-harness", *sys.argv[1:]])
