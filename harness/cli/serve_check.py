"""`mla-harness serve-check URL`: check a running server from outside: accuracy by epoch, and repeated prompts."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.accuracy.serve_check import Check
from harness.cli.options import Json
from harness.cli.output import print_json
from harness.run.child import ask

URL = Annotated[str, typer.Argument(metavar="URL", help="An OpenAI-compatible server, such as http://host:8000/v1.")]


def serve_check(
    context: typer.Context,
    url: URL,
    task: Annotated[str, typer.Option(metavar="TASK", help="Task with the questions.")] = "gsm_symbolic",
    num_epochs: Annotated[
        int, typer.Option("--epochs", metavar="N", min=2, max=1000, help="Ask each question N times.")
    ] = 3,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="Only the first N questions of the task.")] = 64,
    concurrency: Annotated[int, typer.Option(metavar="N", min=1, max=4096, help="Parallel requests.")] = 32,
    repeats: Annotated[int, typer.Option(metavar="N", min=1, help="Prompts that are asked twice, one at a time.")] = 16,
    max_tokens: Annotated[int, typer.Option(metavar="N", min=1, help="Longest answer, in tokens.")] = 112,
    least: Annotated[
        float | None, typer.Option(metavar="SHARE", min=0, max=1, help="Least accuracy of an epoch.")
    ] = None,
    served_model: Annotated[
        str | None, typer.Option(metavar="NAME", help="The model, if the server has several.")
    ] = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="Time limit of one answer.")] = 120.0,
    json: Json = False,
) -> None:
    """Check the accuracy and the repeatability of a running server.

    Asks a task's questions in several epochs, and repeats some prompts, which must give the same answer. Needs no
    access to the server's process. Exit code 0 if both checks pass, else 1.
    """
    request = Check(**{name: context.params[name] for name in Check.model_fields})
    answer = ask("harness.run.serve_check", request, name="the process that asks")
    if json:
        print_json(answer["found"])
    else:
        print(*answer["lines"], sep="\n")
    raise typer.Exit(0 if answer["found"]["ok"] else 1)
