"""`mla-harness epochs`: accuracy by epoch of an engine, or of any OpenAI-compatible server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from harness.accuracy.answer_log import RunHeader
from harness.accuracy.backends import parse_model
from harness.cli.options import Branch, Commit, History, Json, Out, Resume, command_line
from harness.cli.performing import console, perform, print_json
from harness.cli.recording import history_file, source_under_test
from harness.cli.resuming import command_to_resume, reopened
from harness.core.catalog import MODELS
from harness.core.engine_params import ModelParams
from harness.core.errors import InputError
from harness.diagnose.perform import exit_code
from harness.report.terminal import print_run
from harness.report.terminal_accuracy import EpochProgress
from harness.run.child import ChildDied
from harness.run.model_process import ModelProcess
from harness.store.epochs import choose_baseline, create, judged
from harness.store.run_folder import DEFAULT_RUNS, RunStore
from harness.store.summary import summarise

FORMS = "|".join(f"{model.name}:{model.where}" for model in MODELS)


def epochs(
    task: Annotated[str | None, typer.Option("--task", help="For example gsm8k, aime25, gsm_symbolic.")] = None,
    model: Annotated[str | None, typer.Option("--model", metavar=FORMS, help="The model to ask.")] = None,
    num_epochs: Annotated[
        int | None, typer.Option("--epochs", min=1, max=1000, help="How often each question is asked [5].")
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", min=1, max=4096, help="Questions in flight [32].")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Only the first so many questions.")] = None,
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", metavar="DIR", help="TASK/test.jsonl lies here: no hub is asked.")
    ] = None,
    filter_name: Annotated[
        str | None, typer.Option("--filter", help="The task's filter that counts [its first].")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Decides the order of each epoch [0].")] = None,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", min=1, help="Cut answers here, if the task does not before.")
    ] = None,
    kv: Annotated[
        str | None, typer.Option("--kv", metavar="TYPE", help="KV cache type: fp32, bf16, fp8_e4m3 (not of a server).")
    ] = None,
    graph: Annotated[
        str | None, typer.Option("--graph", metavar="none|full", help="Captured graphs (not of a server).")
    ] = None,
    num_blocks: Annotated[
        int | None, typer.Option("--num-blocks", min=4, help="Blocks of the KV pool: few are recycled often (engine).")
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", metavar="cpu|cuda", help="Where the engine runs [cpu].")
    ] = None,
    served_model: Annotated[
        str | None, typer.Option("--served-model", metavar="NAME", help="Which model of a server that has several.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", min=0.1, help="Seconds that a server may take for an answer [120].")
    ] = None,
    baseline: Annotated[
        Path | None, typer.Option("--baseline", metavar="FILE", help="Compare with this baseline, or one of a folder.")
    ] = None,
    out: Out = None,
    resume: Resume = None,
    history: History = None,
    commit: Commit = "",
    branch: Branch = "",
    json: Json = False,
) -> None:
    """Ask the same questions again and again, and judge the accuracy of each epoch."""
    given = {
        "task": task, "model": model, "epochs": num_epochs, "concurrency": concurrency, "limit": limit,
        "data_dir": str(data_dir.resolve()) if data_dir else None, "filter": filter_name, "seed": seed,
        "max_tokens": max_tokens,
    }  # fmt: skip
    settings = {name: value for name, value in given.items() if value is not None}
    special = {
        "kv": kv, "graph": graph, "num_blocks": num_blocks, "device": device, "served_model": served_model,
        "timeout": timeout,
    }  # fmt: skip
    options = {name: value for name, value in special.items() if value is not None}
    store = None
    if resume is not None:
        store = _resumed(resume, out, [*settings, *options, *(["baseline"] if baseline else [])])
        questions = ModelParams.model_validate(store.plan.options["epochs"])
    else:
        questions = _checked(settings, options)
    screen = console(json)
    with ModelProcess(questions) as process:
        with screen.status("loading the task and the model"):
            ready = process.wait_until_ready()
        if store is None:
            store = _created(questions, ready, baseline, out)
        store.note_source(source_under_test(commit, branch))
        store.note_environment(ready["environment"])
        kept = history_file(history)
        code = _perform(store, process, questions, screen, resume=resume is not None, as_json=json, history=kept)
    raise typer.Exit(code)


def _checked(settings: dict[str, Any], options: dict[str, Any]) -> ModelParams:
    """The questions that the options ask for. Raises InputError for what does not fit together."""
    for name, example in (("task", "gsm_symbolic"), ("model", "engine:fixtures/canary-mla")):
        if name not in settings:
            raise InputError(f"epochs: --{name} is missing; for example --{name} {example}")
    kind, _ = parse_model(settings["model"])
    for name in options:
        if name not in kind.options:
            kinds = " and ".join(model.name for model in MODELS if name in model.options)
            why = "; a server is started with its own settings" if kind.name == "server" else ""
            raise InputError(f"--{name.replace('_', '-')}: is of {kinds}, not of {kind.name}{why}")
    return ModelParams(**settings, **options)


def _resumed(name: str, out: Path | None, given: list[str]) -> RunStore:
    if given:
        changed = ", ".join("--" + option.replace("_", "-") for option in given)
        raise InputError(f"--resume: continues the run as it was started; leave out {changed}")
    return reopened(name, out, "epochs")


def _created(questions: ModelParams, ready: dict[str, Any], baseline: Path | None, out: Path | None) -> RunStore:
    header = RunHeader.model_validate(ready["header"])
    chosen = choose_baseline(header, baseline)
    return create(out or DEFAULT_RUNS, header, questions, chosen, command_line())


def _perform(
    store: RunStore,
    process: ModelProcess,
    questions: ModelParams,
    screen: Console,
    *,
    resume: bool,
    as_json: bool,
    history: Path | None,
) -> int:
    """Ask, and whatever ends it: judge, store, report, print, and return the exit code."""
    died: ChildDied | None = None

    def work() -> None:
        nonlocal died
        with EpochProgress(screen, questions.epochs) as live:
            try:
                for said in process.ask(store.path, resume=resume):
                    if said.progress is not None:
                        live.update(said.progress)
            except ChildDied as error:
                # A crash of the model is a result: it is judged, and the run goes on to its reports.
                died = error

    def settle(ended: str) -> None:
        store.add(judged(store, trouble=str(died or ended), log=died.log if died else "", died=died is not None))

    def tell() -> int:
        print_run(screen, store)
        if as_json:
            print_json(summarise(store.plan, store.results(), store.faults()))
        if died is not None:
            print(f"{died}; continue with: {command_to_resume(store)}", file=sys.stderr)
        return exit_code(store.results())

    return perform(store, work, stop=process.close, tell=tell, history=history, settle=settle)
