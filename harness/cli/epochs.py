"""`mla-harness epochs`: accuracy by epoch of the reference engine, of vLLM, or of any OpenAI-compatible server."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli.recording import Branch, Commit, History
from harness.cli.run import INTERRUPTED, Json, Out

if TYPE_CHECKING:
    from rich.console import Console

    from harness.core.engine_params import ModelParams
    from harness.core.records import CaseResult
    from harness.run.model_process import ModelProcess
    from harness.store.run_folder import RunStore

MODELS = "engine:DIR|vllm:PATH|server:URL"


def epochs(
    task: Annotated[str | None, typer.Option("--task", help="For example gsm8k, aime25, gsm_symbolic.")] = None,
    model: Annotated[str | None, typer.Option("--model", metavar=MODELS, help="The model to ask.")] = None,
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
        str | None, typer.Option("--kv", metavar="TYPE", help="KV cache type: fp32, bf16, fp8_e4m3 (engine, vllm).")
    ] = None,
    graph: Annotated[
        str | None, typer.Option("--graph", metavar="none|full", help="Captured graphs (engine, vllm).")
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
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="RUN", help="Continue a run: its directory, id or 'latest'.")
    ] = None,
    history: History = None,
    commit: Commit = "",
    branch: Branch = "",
    json: Json = False,
) -> None:
    """Ask the same questions again and again, and judge the accuracy of each epoch."""
    from harness.cli.recording import history_file, source_under_test
    from harness.core.engine_params import ModelParams
    from harness.run.model_process import ModelProcess

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
    console = _console(json)
    with ModelProcess(questions) as process:
        with console.status("loading the task and the model"):
            ready = process.wait_until_ready()
        if store is None:
            store = _created(questions, ready, baseline, out)
        store.note_source(source_under_test(commit, branch))
        store.note_environment(ready["environment"])
        kept = history_file(history)
        code = _perform(store, process, questions, console, resume=resume is not None, as_json=json, history=kept)
    raise typer.Exit(code)


def _console(as_json: bool) -> Console:
    from harness.report.terminal import console_for

    return console_for(sys.stderr if as_json else sys.stdout)


def _checked(settings: dict[str, Any], options: dict[str, Any]) -> ModelParams:
    """The questions that the options ask for. Raises InputError for what does not fit together."""
    from harness.accuracy.backends import parse_model
    from harness.core.catalog import MODELS
    from harness.core.engine_params import ModelParams
    from harness.core.errors import InputError

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
    from harness.cli.resuming import refuse_other_kind
    from harness.core.errors import InputError
    from harness.store.run_folder import DEFAULT_RUNS, RunStore, find_run

    if given:
        changed = ", ".join("--" + option.replace("_", "-") for option in given)
        raise InputError(f"--resume: continues the run as it was started; leave out {changed}")
    store = RunStore.open(find_run(name, out or DEFAULT_RUNS))
    refuse_other_kind(store, "epochs")
    return store


def _created(questions: ModelParams, ready: dict[str, Any], baseline: Path | None, out: Path | None) -> RunStore:
    from harness.accuracy.records import RunHeader
    from harness.store.epochs import choose_baseline, create
    from harness.store.run_folder import DEFAULT_RUNS

    header = RunHeader.model_validate(ready["header"])
    chosen = choose_baseline(header, baseline)
    command = shlex.join(["mla-harness", *sys.argv[1:]])
    return create(out or DEFAULT_RUNS, header, questions, chosen, command)


def _perform(
    store: RunStore, process: ModelProcess, questions: ModelParams, console: Console, *, resume: bool, as_json: bool,
    history: Path | None,
) -> int:  # fmt: skip
    """Ask, and whatever ends it: judge, store, report, print, and return the exit code."""
    from harness.cli.session import stoppable
    from harness.core.errors import HarnessError, InputError
    from harness.report.terminal_accuracy import EpochProgress
    from harness.run.child import ChildDied
    from harness.store.epochs import judged

    trouble: HarnessError | None = None
    is_interrupted = False
    try:
        with stoppable(store), EpochProgress(console, questions.epochs) as live:
            for said in process.ask(store.path, resume=resume):
                if said.progress is not None:
                    live.update(said.progress)
    except KeyboardInterrupt:
        is_interrupted = True
        process.close()
    except InputError:
        raise
    except HarnessError as error:
        trouble = error
    died = isinstance(trouble, ChildDied)
    words = "interrupted" if is_interrupted else str(trouble) if trouble else ""
    result = judged(store, trouble=words, log=getattr(trouble, "log", ""), died=died)
    store.add(result)
    publish(store, console, as_json=as_json, history=history)
    again = f"mla-harness epochs --resume {shlex.quote(str(store.path))}"
    if is_interrupted or trouble:
        print(f"{words}; continue with: {again}", file=sys.stderr)
    if is_interrupted:
        return INTERRUPTED
    return 3 if trouble and not died else exit_code(result)


def publish(store: RunStore, console: Console, *, as_json: bool, history: Path | None = None) -> None:
    """Write a run to the history, write its reports and print it."""
    from harness.cli.recording import keep
    from harness.report.terminal import print_run
    from harness.report.write import write_reports
    from harness.store.summary import summarise, to_json

    write_reports(store, keep(store, history))
    print_run(console, store)
    if as_json:
        sys.stdout.write(to_json(summarise(store.plan, store.results(), store.faults())))


def exit_code(result: CaseResult) -> int:
    """0 also for one epoch without a baseline: there was nothing to compare, and the run says so."""
    from harness.core.records import Verdict

    return {Verdict.PASS: 0, Verdict.SKIP: 0, Verdict.ERROR: 3}.get(result.verdict, 1)
