"""`mla-harness epochs`: accuracy by epoch of an engine, or of any OpenAI-compatible server."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from harness.accuracy.answer_log import RunHeader
from harness.accuracy.backends import parse_model
from harness.cli import run_and_report
from harness.cli.option_records import LeavingRuns, with_options
from harness.cli.output import console, print_json
from harness.cli.shared_options import Resume, ServedModel, command_line
from harness.core.catalog import MODELS
from harness.core.errors import InputError
from harness.core.model_params import ModelParams
from harness.diagnose.run_jobs import exit_code
from harness.report.progress import EpochProgress, Waiting
from harness.report.run_view import RunView
from harness.report.terminal import print_run
from harness.run.child import ChildDied
from harness.run.model_process import ModelProcess
from harness.store.epochs import choose_baseline, create, judged
from harness.store.run_folder import RunStore
from harness.store.summary import summarise

FORMS = "|".join(f"{model.name}:{model.where}" for model in MODELS)


@dataclass(frozen=True, kw_only=True)
class EpochsOptions(LeavingRuns):
    """Options of `mla-harness epochs`."""

    task: Annotated[
        str | None,
        typer.Option("--task", metavar="TASK", help="For example gsm8k, aime25, gsm_symbolic."),
    ] = None
    model: Annotated[str | None, typer.Option(metavar=FORMS, help="Model or server to ask.")] = None
    epochs: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=1000, help="Ask each question N times [default: 5]."),
    ] = None
    concurrency: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=4096, help="Parallel requests [default: 32]."),
    ] = None
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Only the first N questions.")
    ] = None
    data_dir: Annotated[
        Path | None,
        typer.Option(
            resolve_path=True, metavar="DIR", help="Read DIR/TASK/test.jsonl, not the hub."
        ),
    ] = None
    filter: Annotated[
        str | None, typer.Option(metavar="NAME", help="Filter of the task [default: its first].")
    ] = None
    seed: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Seed of the order [default: 0].")
    ] = None
    max_tokens: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Longest answer, in tokens.")
    ] = None
    kv: Annotated[
        str | None, typer.Option(metavar="TYPE", help="Cache: fp32, bf16, fp8_e4m3; no servers.")
    ] = None
    graph: Annotated[
        str | None, typer.Option(metavar="none|full", help="CUDA graphs; not for servers.")
    ] = None
    num_blocks: Annotated[
        int | None, typer.Option(metavar="N", min=4, help="Blocks of the KV pool; only for engine.")
    ] = None
    device: Annotated[
        str | None, typer.Option(metavar="cpu|cuda", help="Only for engine [default: cpu].")
    ] = None
    served_model: ServedModel = None
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", min=0.1, help="Time limit of a server's answer [default: 120]."
        ),
    ] = None
    repeat: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Also ask a server N prompts twice, one at a time."),
    ] = None
    logprobs: Annotated[
        bool | None,
        typer.Option("--logprobs", help="Also keep a server's log probabilities of each answer."),
    ] = None
    least: Annotated[
        float | None, typer.Option(metavar="SHARE", min=0, max=1, help="Least accuracy.")
    ] = None
    least_acceptance: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE", min=0, max=1, help="Least share of accepted drafts, by a server."
        ),
    ] = None
    baseline: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Baseline, or folder of baselines, to compare with."),
    ] = None
    resume: Resume = None

    def params(self) -> ModelParams:
        """What to ask. Raises InputError for options that do not go together."""
        given = {name: getattr(self, name) for name in ModelParams.model_fields}
        given["data_dir"] = self.data_dir and str(self.data_dir)
        return _checked({name: value for name, value in given.items() if value is not None})


@with_options(EpochsOptions)
def epochs(context: typer.Context, given: EpochsOptions) -> None:
    """Ask a model the same questions several times, and judge each epoch."""
    if store := run_and_report.to_resume(context, given.resume, given.out, "epochs"):
        params = ModelParams.model_validate(store.plan.options["epochs"])
    else:
        params = given.params()
    screen = console(given.json)
    with ModelProcess(params) as process:
        with Waiting(screen, "loading the task and the model"):
            ready = process.wait_until_ready()
        if store is None:
            header = RunHeader.model_validate(ready["header"])
            store = create(
                given.root,
                header,
                params,
                choose_baseline(header, given.baseline),
                command_line(),
                named=str(given.baseline or ""),
            )
        store.note_source(run_and_report.source_under_test(given.commit, given.branch))
        store.note_environment(ready["environment"])
        code = _perform(store, process, params, screen, given)
    raise typer.Exit(code)


def _checked(given: dict[str, Any]) -> ModelParams:
    """The parameters that the options ask for.

    Raises InputError for options that do not go together.
    """
    for name, example in (("task", "gsm_symbolic"), ("model", "engine:fixtures/canary-mla")):
        if name not in given:
            raise InputError(f"epochs: --{name} is missing; for example --{name} {example}")
    kind, _ = parse_model(given["model"])
    if "repeat" in given and kind.name != "server":
        raise InputError(
            f"--repeat: is of server, not of {kind.name}; ask its epochs again with --concurrency 1"
        )
    if "least_acceptance" in given and kind.name != "server":
        raise InputError(
            f"--least-acceptance: is of server, not of {kind.name}; its metrics count the drafts"
        )
    for name in given:
        kinds = [model.name for model in MODELS if name in model.options]
        if kinds and name not in kind.options:
            why = "; a server is started with its own settings" if kind.name == "server" else ""
            raise InputError(
                f"--{name.replace('_', '-')}: is of {' and '.join(kinds)}, not of {kind.name}{why}"
            )
    return ModelParams(**given)


def _perform(
    store: RunStore,
    process: ModelProcess,
    params: ModelParams,
    screen: Console,
    given: EpochsOptions,
) -> int:
    """Ask the questions, then judge, store, report and print what there is.

    Returns the exit code.
    """
    died: ChildDied | None = None

    def work() -> None:
        nonlocal died
        with EpochProgress(screen, params.epochs) as live:
            try:
                for reply in process.ask(store.path, resume=given.resume is not None):
                    if reply.progress is not None:
                        live.update(reply.progress)
            except ChildDied as error:
                # A crash of the model is a result: it is judged, and the run goes on to its
                # reports.
                died = error

    def before_report(ended: str) -> None:
        store.add(
            judged(
                store,
                trouble=str(died or ended),
                log=died.log if died else "",
                died=died is not None,
            )
        )

    def report(view: RunView) -> int:
        print_run(screen, view)
        if given.json:
            print_json(summarise(store, view.coverages))
        if died is not None:
            print(
                f"{died}; continue with: {run_and_report.command_to_resume(store)}", file=sys.stderr
            )
        results = store.results()
        return (
            2
            if run_and_report.is_all_skipped([one.verdict for one in results])
            else exit_code(results)
        )

    return run_and_report.work_and_report(
        store, work, stop=process.close, report=report, before_report=before_report
    )
