"""`mla-harness serve-check URL`: check a running server from outside: by questions, or by a script of requests."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from harness.accuracy.script_check import ORACLE, TOLERANCE, ScriptCheck
from harness.accuracy.serve_check import SCENARIO, Check
from harness.cli import making_runs
from harness.cli.options import Branch, Commit, History, Json, Out, ServedModel, command_line
from harness.cli.output import print_json
from harness.core.cases import Case, Job
from harness.core.engine_params import ModelParams
from harness.core.errors import InputError
from harness.core.records import CaseResult, Verdict
from harness.report.write import write_reports
from harness.run.child import ask
from harness.run.scripts import load_script
from harness.run.serve_check import ServeCheck
from harness.store.run_folder import DEFAULT_RUNS, RunStore

URL = Annotated[str, typer.Argument(metavar="URL", help="An OpenAI-compatible server, such as http://host:8000/v1.")]


def serve_check(
    context: typer.Context,
    url: URL,
    task: Annotated[str, typer.Option("--task", metavar="TASK", help="Task with the questions.")] = "gsm_symbolic",
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
    served_model: ServedModel = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="Time limit of one answer.")] = 120.0,
    script: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Take the steps of a script: abort, cache-reuse, lengths, ...; or FILE.yaml."
        ),
    ] = None,
    tolerance: Annotated[
        float, typer.Option(metavar="NATS", min=0, help="With --script: allowed change of a log probability.")
    ] = TOLERANCE,
    weights: Annotated[
        str | None, typer.Option(metavar="PATH", help="With --script reload: the checkpoint to load.")
    ] = None,
    against: Annotated[
        str | None, typer.Option(metavar="URL", help="With --weights: a server that was started with them.")
    ] = None,
    out: Out = None,
    history: History = None,
    commit: Commit = "",
    branch: Branch = "",
    json: Json = False,
) -> None:
    """Check the answers of a running server, or how it keeps its state.

    Asks a task's questions in several epochs, and repeats some prompts, which must give the same answer. With --script
    it takes the steps of a script instead: cache-reuse, preempt, abort, lengths, sleep, reload. Each answer must have
    the tokens of the same request asked alone and uncached, and the server's counters must show that what the script
    is for (a hit, a preemption, ...) did happen. Needs no access to the server's process. A key is read from the
    environment variable OPENAI_API_KEY. Exit code 0 if all is well, 1 if not, 2 if the script could show nothing.
    """
    request, started = _request(context.params), time.monotonic()
    answer = ask("harness.run.serve_check", request, name="the process that asks")
    result = CaseResult.model_validate(answer["result"])
    store = _stored(result, request, out or DEFAULT_RUNS, time.monotonic() - started)
    store.note_source(making_runs.source_under_test(commit, branch))
    write_reports(store, making_runs.add_to_history(store, making_runs.history_file(history)))
    if json:
        print_json(answer["found"] | {"directory": str(store.path)})
    else:
        print(*answer["lines"], f"report: {store.path / 'report.html'}", sep="\n")
    raise typer.Exit({Verdict.PASS: 0, Verdict.SKIP: 2}.get(result.verdict, 1))


def _request(given: dict[str, Any]) -> ServeCheck:
    """What the options ask for. Raises InputError for options that need others."""
    if given["script"] is None:
        if given["weights"] or given["against"]:
            raise InputError("--weights and --against: are for --script reload; add it, or leave them out")
        return ServeCheck(questions=Check(**{name: given[name] for name in Check.model_fields}))
    if given["against"] and not given["weights"]:
        raise InputError("--against: names a server with the weights of --weights; add --weights")
    script = load_script(given["script"])
    return ServeCheck(
        script=ScriptCheck(**{name: given[name] for name in ScriptCheck.model_fields} | {"script": script})
    )


def _stored(result: CaseResult, request: ServeCheck, root: Path, seconds: float) -> RunStore:
    if request.script:
        given = request.script.model_dump(exclude_defaults=True) | {"script": request.script.script.name}
        task: dict[str, str] = {"task": request.script.script.name}
        oracles: tuple[str, ...] = (ORACLE,)
    else:
        assert request.questions
        given = request.questions.model_dump(exclude={"num_epochs"}) | {"epochs": request.questions.num_epochs}
        task, oracles = {}, ("accuracy", "repeats")
    named = {name: value for name, value in given.items() if name in ModelParams.model_fields}
    params = ModelParams(model=f"server:{given['url']}", **named | task)
    case = Case(id=result.id, scenario=SCENARIO, system="model", params=params, oracles=oracles)
    job = Job(key=result.key, case=case)
    store = RunStore.create(root, [job], command=command_line(), options={SCENARIO: given})
    store.add(result.model_copy(update={"seconds": round(seconds, 3)}))
    store.add_seconds(seconds)
    return store
