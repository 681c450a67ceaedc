"""`mla-harness serve-check URL`: what can be said of a running server from outside: accuracy by epoch, and repeats."""

from __future__ import annotations

import json as jsonlib
import sys
from typing import Annotated

import typer

from harness.accuracy.serve_check import Check
from harness.run.child import ask

URL = Annotated[str, typer.Argument(metavar="URL", help="Of an OpenAI-compatible server, such as http://host:8000/v1.")]


def serve_check(
    url: URL,
    task: Annotated[str, typer.Option("--task", help="The questions, for example gsm_symbolic.")] = "gsm_symbolic",
    num_epochs: Annotated[int, typer.Option("--epochs", min=2, max=1000, help="How often each is asked.")] = 3,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Questions of the task.")] = 64,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, max=4096, help="Questions in flight.")] = 32,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Prompts asked twice, one at a time.")] = 16,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1, help="Cut answers here.")] = 112,
    least: Annotated[
        float | None, typer.Option("--least", min=0, max=1, help="The least accuracy of an epoch; none by default.")
    ] = None,
    served_model: Annotated[
        str | None, typer.Option("--served-model", metavar="NAME", help="Which model of a server that has several.")
    ] = None,
    timeout: Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds for an answer.")] = 120.0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check a running server: accuracy by epoch, and whether a repeat gives the same answer.

    Nothing of the server's process is touched. Exit code 0 when both hold, 1 when one does not.
    """

    request = Check(
        url=url,
        task=task,
        num_epochs=num_epochs,
        limit=limit,
        concurrency=concurrency,
        repeats=repeats,
        max_tokens=max_tokens,
        least=least,
        served_model=served_model,
        timeout=timeout,
    )
    answer = ask("harness.run.serve_check", request, name="the process that asks")
    if json:
        sys.stdout.write(jsonlib.dumps(answer["found"], indent=1) + "\n")
    else:
        for line in answer["lines"]:
            print(line)
    raise typer.Exit(0 if answer["found"]["ok"] else 1)
