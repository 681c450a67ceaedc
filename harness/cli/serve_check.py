"""`mla-harness serve-check URL`: check a running server from outside: accuracy by epoch, and repeated prompts."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.accuracy.serve_check import Check
from harness.cli.options import Json
from harness.cli.output import print_json
from harness.run.child import ask

URL = Annotated[str, typer.Argument(metavar="URL", help="Of an OpenAI-compatible server, such as http://host:8000/v1.")]


def serve_check(
    context: typer.Context,
    url: URL,
    task: Annotated[str, typer.Option(help="The questions, for example gsm_symbolic.")] = "gsm_symbolic",
    num_epochs: Annotated[int, typer.Option("--epochs", min=2, max=1000, help="How often each is asked.")] = 3,
    limit: Annotated[int, typer.Option(min=1, help="Questions of the task.")] = 64,
    concurrency: Annotated[int, typer.Option(min=1, max=4096, help="Questions in flight.")] = 32,
    repeats: Annotated[int, typer.Option(min=1, help="Prompts asked twice, one at a time.")] = 16,
    max_tokens: Annotated[int, typer.Option(min=1, help="Cut answers here.")] = 112,
    least: Annotated[
        float | None, typer.Option(min=0, max=1, help="The least accuracy of an epoch; none by default.")
    ] = None,
    served_model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which model of a server that has several.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for an answer.")] = 120.0,
    json: Json = False,
) -> None:
    """Check a running server: accuracy by epoch, and whether a repeat gives the same answer.

    Nothing of the server's process is touched. Exit code 0 when both hold, 1 when one does not.
    """
    request = Check(**{name: context.params[name] for name in Check.model_fields})
    answer = ask("harness.run.serve_check", request, name="the process that asks")
    if json:
        print_json(answer["found"])
    else:
        print(*answer["lines"], sep="\n")
    raise typer.Exit(0 if answer["found"]["ok"] else 1)
